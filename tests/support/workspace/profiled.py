"""Two runs with profiles of their spans; the second has rows set apart, and rows that wait for their items."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.outcomes import Check, StageResult
from tasks.contracts.profiles import Bin, ColumnDrift, ColumnProfile, Histogram, Shared, SpanProfile
from tasks.contracts.references import RowsRef, SpanRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.workspace import BAD_ROWS, PLAN, PROFILE, RESULT, WAITING_ROWS
from tests.support.workspace.past import week, write_past

SECRET = "ada.lovelace@example.org"  # in a row that was set apart


class Profiled(NamedTuple):
    """Two runs with profiles; the second has rows set apart and rows that wait."""

    store: DirectoryStore
    first: str
    second: str


def column(name: str, kind: Any, **facts: Any) -> ColumnProfile:
    empty = {"type": "string", "null_share": 0.0, "distinct": 5, "quantiles": {}, "top": ()}
    return ColumnProfile(name=name, kind=kind, **empty | facts)


def profile(number: int, rows: int, length: float) -> SpanProfile:
    query = column(
        "query", "text", quantiles={"0": 1.0, "0.5": length, "1": 99.0},
        histogram=Histogram(edges=(0.0, 10.0, 20.0), shares=(0.25, 0.75)), top=(Shared(value="de", share=0.75),),
    )  # fmt: skip
    brand = column("brand", "category", null_share=0.125, distinct=rows // 10, top=(Shared(value="acme", share=0.5),))
    times = {f"2026-01-0{day}": rows // 2 for day in (1, 2)}
    return SpanProfile(span=week(number), version=1, rows=rows, sampled=rows, columns=(query, brand), times=times)


def write_profiled(folder: Path, quarantined: int) -> Profiled:
    store = DirectoryStore(folder / "store")
    first, second = write_past(store, 2)
    for number, key in enumerate((first, second)):
        outcome: dict[str, Any] = {
            "profiles": {week(number): PROFILE.key(run=key, stage="validate", attempt=1, span=week(number))}
        }
        store.write(outcome["profiles"][week(number)], profile(number, 100 * (number + 1), 12.0 + number).to_json())
        if number:
            drift = ColumnDrift(
                name="brand", psi=0.5, limit=0.25, severity="warning", bins=(Bin(label="acme", earlier=0.9, now=0.5),)
            )  # fmt: skip
            check = Check(name="brand drift", passed=False, severity="warning", observed=0.5, sentence="It drifted.")
            outcome |= {"drifts": (drift,), "checks": (check,), "rows_quarantined": quarantined}
            outcome |= {"reasons": {"item is null": quarantined - 1, "price below 0": 1}}
            outcome |= {
                "quarantine": _rows(store, folder, BAD_ROWS.key(run=key, stage="validate", attempt=1), quarantined)
            }
            outcome |= {"waiting": _rows(store, folder, WAITING_ROWS.key(run=key, folder="w"), 3, waits=True)}
            ref = RowsRef(
                span=SpanRef(name=week(0), version=1), prefix=f"runs/{first}/validate/rows/{week(0)}-ab", rows=9
            )
            plan = RunPlan.model_validate_json(store.read(PLAN.key(run=key))).model_copy(update={"history": (ref,)})
            store.write(PLAN.key(run=key), plan.to_json())
        result = StageResult.model_validate_json(store.read(RESULT.key(run=key, stage="validate")))
        changed = result.model_copy(update={"outcome": result.outcome.model_copy(update=outcome)})
        store.write(RESULT.key(run=key, stage="validate"), changed.to_json())
    return Profiled(store, first, second)


def _rows(store: DirectoryStore, folder: Path, prefix: str, count: int, waits: bool = False) -> str:
    texts = [SECRET if number == 1 else f"lamp <b>{number}</b>" for number in range(count)]
    rows = [{"row_id": f"r{n}", "query": query, "item": None, "price": -1.0} for n, query in enumerate(texts)]
    table = pa.Table.from_pylist(rows)
    if waits:
        table = table.append_column("ingested_in", pa.array(["spans/2026-W01/v1"] * count))
    else:
        reasons = ["item is null; price below 0", *["item is null"] * (count - 2), "price below 0 \u202e"]
        table = table.append_column("reason", pa.array(reasons)).append_column("span", pa.array([week(1)] * count))
    made = folder / ("waiting" if waits else "bad")
    made.mkdir()
    pq.write_table(table, made / "quarantine.parquet")
    commit(store, prefix, made, "waiting" if waits else "quarantine", {"rows": count})
    return prefix if waits else f"{prefix}/quarantine.parquet"
