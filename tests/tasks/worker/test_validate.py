import datetime as dt
import json
import math
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.load import load_config
from infra.manifest import CorruptFolder, MissingFolder, commit, open_folder, read_manifest
from infra.store import DirectoryStore
from tasks import progress
from tasks.contracts import Check, JobSpec, RowsRef, SpanRef, ValidateInputs, ValidateOutcome
from tasks.errors import DataError
from tasks.rows import CORE, ROWS_KIND, SPAN_KIND, read_rows
from tasks.worker import validate
from tasks.worker.job import Job, PhaseClock, Rank

SCRATCH = (
    "model.scratch={vocab_size: 500, hidden_size: 32, layers: 1, attention_heads: 2, "
    "intermediate_size: 64, max_tokens: 128}"
)
FEATURES = ["features.numeric=[price]", "features.categorical=[brand]", "evaluate.slices=[locale]"]
TYPES = {**CORE, "price": pa.float64(), "brand": pa.string(), "locale": pa.string()}
MARCH = SpanRef(name="2026-03", version=1)
APRIL = SpanRef(name="2026-04", version=1)


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


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
    table = pa.table({name: pa.array([v.get(name) for v in values], kind) for name, kind in columns.items()})
    folder = tmp_path / "made" / span.name
    folder.mkdir(parents=True)
    half = len(table) // 2 if len(table) > 1 else len(table)
    pq.write_table(table.slice(0, half), folder / "part-00000.parquet")
    pq.write_table(table.slice(half), folder / "part-00001.parquet")
    commit(store, span.prefix, folder, SPAN_KIND, {"rows": len(table)})


def job(
    store: DirectoryStore,
    window: Sequence[SpanRef] = (MARCH,),
    history: Sequence[RowsRef] = (),
    overrides: Sequence[str] = (),
) -> Job:
    spec = JobSpec(
        run_key="k",
        span=window[-1],
        attempt=1,
        workspace=store.uri,
        workers=1,
        config=load_config(None, [SCRATCH, *FEATURES, *overrides]),
        inputs=ValidateInputs(window=tuple(window), history=tuple(history)),
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


# --- clean and bad rows -----------------------------------------------------------------------------------------


def test_a_clean_span_comes_out_as_it_went_in(
    store: DirectoryStore, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    values = rows(40)
    write_span(store, tmp_path, MARCH, values)
    outcome = validate.run(job(store))
    assert outcome.rows == (RowsRef(span=MARCH, prefix="runs/k/validate/attempt-1/rows/2026-03", rows=40),)
    assert (outcome.rows_in, outcome.rows_clean, outcome.rows_quarantined) == (40, 40, 0)
    assert (outcome.quarantine, outcome.reasons, failed(outcome)) == (None, {}, [])
    assert read_rows(store, outcome.rows, ["price", "brand", "locale"]).to_pylist() == values
    told = [found for line in capsys.readouterr().out.splitlines() if (found := progress.parse(line))]
    assert [(t.done, t.total, t.note) for t in told] == [(1, 1, "2026-03: 40 rows clean, 0 bad")]
    assert not store.list("runs/k/validate/attempt-1/quarantine")


BAD = [
    ({"query": None}, "query is null", "query present"),
    ({"item": None}, "item is null", "item present"),
    ({"item_id": None}, "item_id is null", "item_id present"),
    ({"row_id": None}, "row_id is null", "row_id present"),
    ({"time": None}, "time is null", "time present"),
    ({"query": "ab"}, "query shorter than 3 characters", "query length"),
    ({"item": "  \t  "}, "item shorter than 3 characters", "item length"),
    ({"item": "x" * 51}, "item longer than 50 characters", "item length"),
    ({"label": -0.5}, "label below 0", "label range"),
    ({"label": 5.5}, "label above 5", "label range"),
    ({"price": -1.0}, "price below 0", "price range"),
    ({"price": math.inf}, "price above 1000000000", "price range"),
    ({"price": -math.inf}, "price below 0", "price range"),
    ({"row_id": "r0003"}, "row_id repeats an earlier row of the span", "row_id unique"),
]
LIMITS = [
    "validate.min_text_chars=3",
    "validate.max_text_chars=50",
    "validate.label_min=0",
    "validate.label_max=5",
    "validate.numeric_min=0",
]


@pytest.mark.parametrize(("changes", "reason", "name"), BAD)
def test_a_bad_row_is_set_aside_with_its_reason(
    store: DirectoryStore, tmp_path: Path, changes: dict[str, Any], reason: str, name: str
):
    values = [*rows(25), row(25, **changes), *rows(24, start=26)]
    write_span(store, tmp_path, MARCH, values)
    outcome = validate.run(job(store, overrides=LIMITS))
    assert quarantined(store, outcome) == [{**values[25], "reason": reason, "span": "2026-03"}]
    assert outcome.quarantine == "runs/k/validate/attempt-1/quarantine/quarantine.parquet"
    assert outcome.reasons == {reason: 1}
    assert read_rows(store, outcome.rows, []).num_rows == outcome.rows_clean == outcome.rows[0].rows == 49
    assert failed(outcome) == [name]
    found = check(outcome, name)
    assert (found.severity, found.observed) == ("warning", 1.0)
    assert found.sentence == f"1 of 50 rows are bad (2.00%): {reason} in 1."
    assert check(outcome, "quarantined share").observed == 0.02


def test_a_row_can_be_bad_for_several_reasons(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, [*rows(40), row(40, item=None, price=-3.0), row(41, price=-1.0)])
    outcome = validate.run(job(store, overrides=LIMITS))
    assert [bad["reason"] for bad in quarantined(store, outcome)] == ["item is null; price below 0", "price below 0"]
    assert outcome.reasons == {"price below 0": 2, "item is null": 1}
    assert outcome.rows_quarantined == 2


@pytest.mark.parametrize("changes", [{"label": None}, {"label": math.nan}, {"price": None}, {"price": math.nan}])
def test_a_missing_number_is_no_fault_and_becomes_null(store: DirectoryStore, tmp_path: Path, changes: dict[str, Any]):
    write_span(store, tmp_path, MARCH, [*rows(40), row(40, **changes)])
    outcome = validate.run(job(store, overrides=LIMITS))
    assert failed(outcome) == []
    (column,) = changes
    assert read_rows(store, outcome.rows, ["price"])[column].to_pylist()[-1] is None


@pytest.mark.parametrize("bound", ["validate.numeric_max=.inf", "validate.numeric_max=1e308"])
def test_infinity_is_bad_whatever_the_bound(store: DirectoryStore, tmp_path: Path, bound: str):
    write_span(store, tmp_path, MARCH, [*rows(40), row(40, price=math.inf)])
    assert validate.run(job(store, overrides=[bound])).rows_quarantined == 1


def test_of_rows_with_one_id_the_first_good_one_stays(store: DirectoryStore, tmp_path: Path):
    values = [*rows(40), row(7, query="second"), row(50, item=None), row(50), row(50, query="third")]
    write_span(store, tmp_path, MARCH, values)
    outcome = validate.run(job(store))
    again = "row_id repeats an earlier row of the span"
    assert [(bad["query"], bad["reason"]) for bad in quarantined(store, outcome)] == [
        ("second", again),
        (values[41]["query"], "item is null"),
        ("third", again),
    ]
    assert outcome.rows_clean == 41


def test_an_id_belongs_to_the_first_span_of_the_window_that_has_it(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(40))
    write_span(store, tmp_path, APRIL, [*rows(40, start=100), row(3)])
    outcome = validate.run(job(store, [MARCH, APRIL]))
    assert outcome.reasons == {"row_id is in an earlier span of the window": 1}
    assert quarantined(store, outcome)[0]["span"] == "2026-04"
    assert [ref.rows for ref in outcome.rows] == [40, 40]


def test_the_bad_rows_of_all_spans_lie_in_one_file(store: DirectoryStore, tmp_path: Path):
    # a column that no stage uses may have another type in another span, and even the name of ours
    march = [*rows(40), row(40, item=None, note=1.5, reason="mine")]
    april = [*rows(40, start=100), row(140, query=None, note="n")]
    write_span(store, tmp_path, MARCH, march, note=pa.float64(), reason=pa.string())
    write_span(store, tmp_path, APRIL, april, note=pa.string())
    bad = quarantined(store, validate.run(job(store, [MARCH, APRIL])))
    assert [(b["span"], b["reason"], b["note"], b["reason_in_source"]) for b in bad] == [
        ("2026-03", "item is null", "1.5", "mine"),
        ("2026-04", "query is null", "n", None),
    ]


def test_text_in_a_numeric_feature_is_read_and_what_is_no_number_is_bad(store: DirectoryStore, tmp_path: Path):
    prices = ["12.5", " 3 ", "", None, "n/a", "1e3"]
    values = [*rows(40, price="1"), *(row(40 + n, price=price) for n, price in enumerate(prices))]
    write_span(store, tmp_path, MARCH, values, price=pa.string())
    outcome = validate.run(job(store))
    assert outcome.reasons == {"price is not a number": 1}
    assert quarantined(store, outcome)[0]["price"] == "n/a"
    clean = read_rows(store, outcome.rows, ["price"])["price"]
    assert clean.type == pa.float64()
    assert clean.to_pylist()[40:] == [12.5, 3.0, None, None, 1000.0]


@pytest.mark.parametrize(
    ("kind", "brand", "name"),
    [(pa.float64(), 12.0, "12"), (pa.bool_(), True, "true"), (pa.float64(), math.nan, None), (pa.null(), None, None)],
)
def test_categories_come_out_as_names_whatever_the_source_made_of_them(
    store: DirectoryStore, tmp_path: Path, kind: pa.DataType, brand: object, name: str | None
):
    write_span(store, tmp_path, MARCH, rows(40, brand=brand), brand=kind)
    write_span(store, tmp_path, APRIL, rows(40, start=100))
    outcome = validate.run(job(store, [MARCH, APRIL]))
    brands = read_rows(store, outcome.rows, ["brand"])["brand"]
    assert brands.type == pa.string()
    assert brands[0].as_py() == name


def test_a_feature_without_a_single_value_is_a_warning(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(40, price=math.nan))
    outcome = validate.run(job(store))
    assert failed(outcome) == ["price filled"]
    assert check(outcome, "price filled").severity == "warning"
    assert outcome.rows_clean == 40


# --- the window -------------------------------------------------------------------------------------------------


def test_an_empty_span_is_left_out(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, [])
    write_span(store, tmp_path, APRIL, rows(40))
    outcome = validate.run(job(store, [MARCH, APRIL]))
    assert [ref.span for ref in outcome.rows] == [APRIL]
    assert not store.list("runs/k/validate/attempt-1/rows/2026-03")


def written(store: DirectoryStore) -> list[str]:
    return [key.removeprefix("runs/k/validate/") for key in store.list("runs")]


def test_the_last_span_must_have_rows(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(40))
    write_span(store, tmp_path, APRIL, [])
    with pytest.raises(DataError, match=r"rows in the last span: 0 clean rows in span 2026-04"):
        validate.run(job(store, [MARCH, APRIL]))
    assert written(store) == ["attempt-1/report.json"]


def test_a_window_of_nothing_fails_on_its_count(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, [])
    with pytest.raises(DataError, match="clean rows: 0 clean rows in the window; at least 32 are required") as raised:
        validate.run(job(store))
    assert "Bad rows by reason: none." in str(raised.value)


def test_the_window_as_a_whole_must_have_enough_rows(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(20))
    write_span(store, tmp_path, APRIL, rows(12, start=100))
    assert validate.run(job(store, [MARCH, APRIL])).rows_clean == 32
    with pytest.raises(DataError, match="20 clean rows"):
        validate.run(job(store, [MARCH]))


def test_too_many_bad_rows_stop_the_run_and_leave_no_clean_ones(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, [*rows(75), *rows(20, start=75, item=None), *rows(5, start=95, query="")])
    with pytest.raises(DataError) as raised:
        validate.run(job(store))
    message = str(raised.value)
    assert "quarantined share: 25 of 100 rows are bad (25.00%); at most 20.00% may be." in message
    assert "item is null (20), query is empty (5)" in message
    assert f"{store.uri}/runs/k/validate/attempt-1/quarantine/quarantine.parquet" in message
    assert written(store) == [
        "attempt-1/quarantine/MANIFEST.json",
        "attempt-1/quarantine/quarantine.parquet",
        "attempt-1/report.json",
    ]
    report = ValidateOutcome.model_validate_json(store.read("runs/k/validate/attempt-1/report.json"))
    assert (report.rows, report.rows_clean, report.rows_quarantined) == ((), 75, 25)
    assert "quarantined share" in failed(report)
    assert len(quarantined(store, report)) == 25


def test_a_share_of_exactly_the_limit_is_allowed(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, [*rows(80), *rows(20, start=80, item=None)])
    assert validate.run(job(store)).rows_quarantined == 20


# --- what is there, and whether it can be trusted ---------------------------------------------------------------


@pytest.mark.parametrize("column", ["item_id", "price", "brand", "locale"])
def test_a_missing_column_stops_before_anything_is_written(store: DirectoryStore, tmp_path: Path, column: str):
    gone: Any = {column: "gone"}
    write_span(store, tmp_path, MARCH, rows(40))
    write_span(store, tmp_path, APRIL, rows(40, start=100), **gone)
    with pytest.raises(DataError, match=rf"span 2026-04 v1: no column '{column}'.* has row_id, time") as raised:
        validate.run(job(store, [MARCH, APRIL]))
    assert "2026-03" not in str(raised.value)
    assert written(store) == []


def test_all_that_is_wrong_with_the_columns_is_said_at_once(store: DirectoryStore, tmp_path: Path):
    gone: Any = {"brand": "gone", "label": pa.string(), "price": pa.timestamp("us")}
    write_span(store, tmp_path, MARCH, rows(40, label="good", price=None), **gone)
    with pytest.raises(DataError) as raised:
        validate.run(job(store))
    first, second, third, way_out = str(raised.value).splitlines()
    assert "column 'label' is string in part-00000.parquet, but must be double; every span must have it" in first
    assert "column 'price' is timestamp[us] in part-00000.parquet, but must be double or bool or string" in second
    assert "no column 'brand'; features.categorical names it" in third
    assert "Ingest the span again" in way_out


def test_a_core_column_of_text_is_no_numeric_feature(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(40))
    with pytest.raises(DataError, match=r"'query' is string .* must be double; features.numeric names it"):
        validate.run(job(store, overrides=["features.numeric=[query]"]))


def test_a_corrupt_span_is_named(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, rows(40))
    store.write(f"{MARCH.prefix}/part-00001.parquet", b"something else")
    with pytest.raises(CorruptFolder, match=r"span 2026-03 v1: .*part-00001.parquet does not match its checksum"):
        validate.run(job(store))
    assert written(store) == []


def test_a_span_that_was_never_completed_is_named(store: DirectoryStore):
    with pytest.raises(MissingFolder, match=r"span 2026-03 v1: .* ingest the span again"):
        validate.run(job(store))


@pytest.mark.parametrize(
    ("name", "said"), [("part-00000.parquet", "not readable as Parquet"), ("notes.txt", "holds no Parquet file")]
)
def test_a_span_that_is_not_parquet_is_named(store: DirectoryStore, tmp_path: Path, name: str, said: str):
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / name).write_bytes(b"no rows here")
    commit(store, MARCH.prefix, folder, SPAN_KIND, {})
    with pytest.raises(DataError, match=rf"span 2026-03 v1.*{said}"):
        validate.run(job(store))


# --- drift against the spans before -----------------------------------------------------------------------------


def validated(
    store: DirectoryStore, tmp_path: Path, values: Sequence[dict[str, Any]], name: str = "2026-02"
) -> RowsRef:
    folder = tmp_path / "validated" / name
    folder.mkdir(parents=True)
    table = pa.table({name: pa.array([v.get(name) for v in values], kind) for name, kind in TYPES.items()})
    pq.write_table(table, folder / "part-00000.parquet")
    ref = RowsRef(span=SpanRef(name=name, version=1), prefix=f"runs/before/rows/{name}", rows=len(values))
    commit(store, ref.prefix, folder, ROWS_KIND, {"rows": len(values)})
    return ref


DRIFTS = ["label drift", "query length drift", "item length drift"]


def test_rows_like_those_before_do_not_drift(store: DirectoryStore, tmp_path: Path):
    history = validated(store, tmp_path, rows(390))
    write_span(store, tmp_path, MARCH, rows(195, start=390))
    outcome = validate.run(job(store, history=[history]))
    assert failed(outcome) == []
    for name in DRIFTS:
        observed = check(outcome, name).observed
        assert observed is not None
        assert observed < 0.05


def test_small_spans_do_not_warn_for_what_chance_gives(store: DirectoryStore, tmp_path: Path):
    # 60 and 60 rows of one distribution: the bare index is above 0.25, and so it is for most such pairs
    lengths = random.Random(4)
    varied = [row(number, query="q" * (20 + int(lengths.expovariate(0.01)))) for number in range(120)]
    write_span(store, tmp_path, MARCH, varied[60:])
    outcome = validate.run(job(store, history=[validated(store, tmp_path, varied[:60])]))
    found = check(outcome, "query length drift")
    assert found.observed is not None
    assert found.observed > 0.25
    assert found.passed
    assert "0.25, and 0.300 that chance gives" in found.sentence


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"label": 4.0}, "label drift"),
        ({"label": None}, "label drift"),
        ({"label": 9.0}, "label drift"),
        ({"query": "q" * 80}, "query length drift"),
        ({"item": "a lamp that has grown a much longer title"}, "item length drift"),
    ],
)
def test_drift_is_a_warning(store: DirectoryStore, tmp_path: Path, changes: dict[str, Any], name: str):
    history = validated(store, tmp_path, rows(390))
    write_span(store, tmp_path, MARCH, [*rows(95, start=390), *rows(100, start=485, **changes)])
    outcome = validate.run(job(store, history=[history]))
    assert failed(outcome) == [name]
    found = check(outcome, name)
    assert found.severity == "warning"
    assert found.observed is not None
    assert found.observed > 0.25 + 0.07
    assert "of 195 rows against 390 earlier ones" in found.sentence
    assert f"index {found.observed:.3f}" in found.sentence
    lenient = ["validate.max_label_drift=99", "validate.max_length_drift=99"]
    assert failed(validate.run(job(store, history=[history], overrides=lenient))) == []


@pytest.mark.parametrize(("before", "now"), [(0, 195), (49, 195), (390, 49)])
def test_drift_is_not_judged_on_a_handful_of_rows(store: DirectoryStore, tmp_path: Path, before: int, now: int):
    history = [validated(store, tmp_path, rows(before))] if before else []
    write_span(store, tmp_path, MARCH, rows(now, start=390, label=4.0))
    outcome = validate.run(job(store, history=history))
    for name in DRIFTS:
        found = check(outcome, name)
        assert (found.passed, found.observed) == (True, None)
        assert f"Not judged: {before} earlier rows and {now} in the window" in found.sentence


def test_of_a_long_history_the_newest_rows_count(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    old = validated(store, tmp_path, rows(60, label=0.0), "2026-01")
    new = validated(store, tmp_path, rows(65, start=60), "2026-02")
    write_span(store, tmp_path, MARCH, rows(65, start=125))
    assert "against 125 earlier" in check(validate.run(job(store, history=[old, new])), "label drift").sentence
    monkeypatch.setattr(validate, "_HISTORY_ROWS", 65)
    assert "against 65 earlier" in check(validate.run(job(store, history=[old, new])), "label drift").sentence


def test_bad_rows_do_not_count_as_drift(store: DirectoryStore, tmp_path: Path):
    history = validated(store, tmp_path, rows(390))
    write_span(store, tmp_path, MARCH, [*rows(195, start=390), *rows(40, start=585, query="")])
    assert failed(validate.run(job(store, history=[history]))) == ["query length"]


def test_earlier_rows_that_are_corrupt_are_named(store: DirectoryStore, tmp_path: Path):
    history = validated(store, tmp_path, rows(60))
    store.write(f"{history.prefix}/part-00000.parquet", b"something else")
    write_span(store, tmp_path, MARCH, rows(40))
    with pytest.raises(CorruptFolder, match=r"rows of the earlier span 2026-02: .*does not match"):
        validate.run(job(store, history=[history]))


# --- the stage as a whole ---------------------------------------------------------------------------------------


def test_the_same_spans_give_the_same_bytes(tmp_path: Path):
    manifests = []
    for place in ("one", "two"):
        store = DirectoryStore(tmp_path / place / "workspace")
        write_span(store, tmp_path / place, MARCH, [*rows(60), row(60, item=None)])
        outcome = validate.run(job(store))
        manifests.append(
            (
                read_manifest(store, outcome.rows[0].prefix).sha256,
                read_manifest(store, "runs/k/validate/attempt-1/quarantine").sha256,
                outcome.to_json(),
            )
        )
    assert manifests[0] == manifests[1]


def test_asking_an_attempt_again_changes_nothing(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, [*rows(60), row(60, item=None)])
    assert validate.run(job(store)) == validate.run(job(store))


def test_through_the_one_door_without_torch(store: DirectoryStore, tmp_path: Path):
    write_span(store, tmp_path, MARCH, [*rows(60), row(60, item=None)])
    store.write("spec.json", job(store).spec.to_json())
    blocked = """
import sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "prefect"):
            raise ImportError(f"{name} is not for this stage")

sys.meta_path.insert(0, Wall())
from tasks.worker.__main__ import main
sys.exit(main())
"""
    command = [sys.executable, "-c", blocked, "validate", "--spec", f"{store.uri}#spec.json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(store.read("runs/k/validate/result.json"))
    assert result["outcome"]["reasons"] == {"item is null": 1}
