"""Hand-made spans of a small shop, and the validate stage's job over them."""

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from configs.load import load_config
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit, open_folder
from tasks.contracts.jobs import JobSpec, ValidateInputs
from tasks.contracts.outcomes import Check, ValidateOutcome
from tasks.contracts.references import CheckpointRef, RowsRef, SpanRef
from tasks.contracts.spans import first_day
from tasks.data.rows import CORE, ROWS_KIND, SPAN_KIND
from tasks.worker.process.job import Job, PhaseClock, Rank

SCRATCH = (
    "model.scratch={vocab_size: 500, hidden_size: 32, layers: 1, attention_heads: 2, "
    "intermediate_size: 64, max_tokens: 128}"
)
FEATURES = [
    "model.interaction.kind=both",
    "features.numeric=[price]",
    "features.categorical=[brand]",
    "evaluate.slices=[locale]",
]
NEW_ITEMS = "validate.items.new.warn=null"  # each row is about an item of its own
TYPES = {**CORE, "price": pa.float64(), "brand": pa.string(), "locale": pa.string()}
MARCH = SpanRef(name="2026-03", version=1)
APRIL = SpanRef(name="2026-04", version=1)


def row(number: int, **changes: Any) -> dict[str, Any]:
    values = {
        "row_id": f"r{number:04d}",
        "time": dt.datetime(2026, 3, 1, tzinfo=dt.UTC) + dt.timedelta(minutes=number),
        "query": f"red lamp {'x' * (number % 13)}",
        "item": f"Lamp No. {number:04d} {'y' * (number % 13)}",
        "item_id": f"i{number:04d}",
        "label": float(number % 5),
        "price": 9.5 + number % 7,
        "brand": ("acme", "zen")[number % 2],
        "locale": ("de", "en")[number % 2],
    }
    return values | changes


def rows(count: int, start: int = 0, **changes: Any) -> list[dict[str, Any]]:
    return [row(number, **changes) for number in range(start, start + count)]


def write_span(
    store: DirectoryStore, tmp_path: Path, span: SpanRef, values: Sequence[dict[str, Any]], **types: pa.DataType
) -> None:
    columns = {name: types.get(name, kind) for name, kind in TYPES.items()}
    columns |= {name: kind for name, kind in types.items() if name not in columns}
    for name in [name for name, kind in columns.items() if kind == "gone"]:
        del columns[name]
    later = first_day(span.name) - first_day(MARCH.name)  # rows are made for March
    moved = [{**v, "time": v["time"] and v["time"] + later} for v in values] if "time" in columns else values
    table = pa.table({name: pa.array([v.get(name) for v in moved], kind) for name, kind in columns.items()})
    folder = tmp_path / "made" / span.name
    folder.mkdir(parents=True)
    half = len(table) // 2 if len(table) > 1 else len(table)
    pq.write_table(table.slice(0, half), folder / "part-00000.parquet")
    pq.write_table(table.slice(half), folder / "part-00001.parquet")
    commit(store, span.prefix, folder, SPAN_KIND, {"rows": len(table)})


def validated(
    store: DirectoryStore,
    tmp_path: Path,
    values: Sequence[dict[str, Any]],
    name: str = "2026-02",
    version: int = 1,
    more: Mapping[str, pa.DataType] | None = None,
) -> RowsRef:
    """The clean rows of an earlier span."""
    folder = tmp_path / "validated" / f"{name} v{version}"
    folder.mkdir(parents=True)
    types = TYPES | dict(more or {})
    table = pa.table({name: pa.array([v.get(name) for v in values], kind) for name, kind in types.items()})
    pq.write_table(table, folder / "part-00000.parquet")
    span = SpanRef(name=name, version=version)
    ref = RowsRef(span=span, prefix=f"runs/before/v{version}/rows/{name}", rows=len(values))
    commit(store, ref.prefix, folder, ROWS_KIND, {"rows": len(values)})
    return ref


def job(
    store: DirectoryStore,
    window: Sequence[SpanRef] = (MARCH,),
    history: Sequence[RowsRef] = (),
    overrides: Sequence[str] = (),
    others: Sequence[RowsRef] = (),
    parent: CheckpointRef | None = None,
    attempt: int = 1,
) -> Job:
    inputs = ValidateInputs(
        window=tuple(window), history=tuple(history), feeds=(), bases=(), others=tuple(others), parent=parent
    )
    spec = JobSpec(
        run_key="k",
        span=window[-1],
        attempt=attempt,
        submitted_as=attempt,
        workspace=store.uri,
        workers=1,
        config=load_config(None, [SCRATCH, *FEATURES, NEW_ITEMS, *overrides]),
        inputs=inputs,
    )
    return Job(spec, store, Rank(0, 1, 0), PhaseClock(0.0))


def quarantined(store: DirectoryStore, outcome: ValidateOutcome) -> list[dict[str, Any]]:
    assert outcome.quarantine is not None
    folder, manifest = open_folder(store, outcome.quarantine.rpartition("/")[0], "quarantine")
    assert [entry.name for entry in manifest.files] == ["quarantine.parquet"]
    return pq.read_table(folder / "quarantine.parquet").to_pylist()


def check(outcome: ValidateOutcome, name: str) -> Check:
    (found,) = [check for check in outcome.checks if check.name == name]
    return found


def failed(outcome: ValidateOutcome) -> list[str]:
    return [check.name for check in outcome.checks if not check.passed]


def written(store: DirectoryStore) -> list[str]:
    return [key.removeprefix("runs/k/validate/") for key in store.list("runs")]
