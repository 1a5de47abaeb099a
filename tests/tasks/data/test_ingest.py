import datetime as dt
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import read_manifest
from tasks.contracts.jobs import Progress
from tasks.contracts.references import SpanRef
from tasks.contracts.spans import SpanKind
from tasks.data import source_spans
from tasks.data.files.formats import Format
from tasks.data.files.spelling import Spelling
from tasks.data.ingest import ingest
from tasks.data.mapping import parse_map
from tasks.data.rows import CORE, SPAN_KIND
from tasks.data.span_versions import list_spans
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError, DataError
from tests.support.pages.golden import Golden
from tests.support.workspace.inputs import MAP, ROWS, files_in, review, rows_of, run, versions, write_input

ROOT = Path(__file__).resolve().parents[3]
REVIEWS = ROOT / "../shared/data/amazon-reviews-sample/reviews.jsonl.gz"


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, which must be empty afterwards."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("form", list(Format))
def test_every_format_gives_the_same_spans(
    store: DirectoryStore, tmp_path: Path, scratch: Path, form: Format, packed: bool
) -> None:
    summary = run(store, write_input(tmp_path / "input", ROWS, form, packed), form)
    assert versions(summary) == [("2026-01", 1, 1, True), ("2026-02", 1, 3, True)]
    assert (summary.rows, summary.files) == (4, 1)
    rows = rows_of(store, "2026-02")
    types = {name: str(kind) for name, kind in CORE.items()} | {"brand": "string", "new": "bool", "price": "double"}
    assert {field.name: str(field.type) for field in rows.schema} == types
    first = rows.slice(0, 1).to_pylist()[0]
    assert first.pop("item_id")
    assert first == {
        "row_id": "r1",
        "time": dt.datetime(2026, 2, 1, 8, 30, tzinfo=dt.UTC),
        "query": "review 1",
        "item": "lamp 1",
        "label": 1.0,
        "brand": "acme",
        "new": False,
        "price": 1.5,
    }
    assert rows["row_id"].to_pylist() == ["r1", "r3", "r4"]
    assert rows["label"].to_pylist() == [1.0, None, 4.0]
    assert rows["query"].to_pylist() == ["review 1", "review 3", None]
    assert rows_of(store, "2026-01")["price"].to_pylist() == [None]
    assert files_in(scratch) == []


def test_the_manifest_describes_the_span(store: DirectoryStore, tmp_path: Path) -> None:
    before = now()
    run(store, write_input(tmp_path / "input", ROWS))
    manifest = read_manifest(store, "spans/2026-02/v1")
    assert manifest.kind == SPAN_KIND
    assert [file.name for file in manifest.files] == ["part-00000.parquet"]
    facts = dict(manifest.facts)
    assert len(facts.pop("content_sha256")) == 64
    assert before <= facts.pop("ingested_at") <= now()
    assert facts.pop("columns") == {field.name: str(field.type) for field in rows_of(store, "2026-02").schema}
    assert facts == {"span": "2026-02", "version": 1, "rows": 3, "labels": 2}
    assert list_spans(store) == [SpanRef(name="2026-01", version=1), SpanRef(name="2026-02", version=1)]


def test_a_folder_is_one_input(store: DirectoryStore, tmp_path: Path) -> None:
    write_input(tmp_path / "in" / "1.jsonl", ROWS[:3])
    write_input(tmp_path / "in" / "2.jsonl.gz", ROWS[3:], packed=True)
    summary = run(store, tmp_path / "in")
    assert (summary.rows, summary.files) == (4, 2)
    assert rows_of(store, "2026-02")["row_id"].to_pylist() == ["r1", "r3", "r4"]


def test_the_same_rows_again_write_nothing(store: DirectoryStore, tmp_path: Path) -> None:
    run(store, write_input(tmp_path / "input", ROWS))
    before = {name: (store.root / name).stat().st_mtime_ns for name in store.list("spans")}
    summary = run(store, write_input(tmp_path / "again", ROWS, Format.parquet, packed=True), Format.parquet)
    assert versions(summary) == [("2026-01", 1, 1, False), ("2026-02", 1, 3, False)]
    assert {name: (store.root / name).stat().st_mtime_ns for name in store.list("spans")} == before


def test_changed_rows_make_a_new_version_of_their_span_only(store: DirectoryStore, tmp_path: Path) -> None:
    run(store, write_input(tmp_path / "input", ROWS))
    changed = [*ROWS[:3], review(4, "2026-02-10", text="found it")]
    summary = run(store, write_input(tmp_path / "changed", changed), known="replace")
    assert versions(summary) == [("2026-01", 1, 1, False), ("2026-02", 2, 3, True)]
    assert rows_of(store, "2026-02", 1)["query"].to_pylist()[-1] is None
    assert rows_of(store, "2026-02", 2)["query"].to_pylist()[-1] == "found it"
    back = run(store, tmp_path / "input", known="replace")
    assert versions(back)[1] == ("2026-02", 3, 3, True)


def test_types_are_chosen_from_the_whole_input(store: DirectoryStore, tmp_path: Path) -> None:
    rows = [
        review(1, "2026-01-01", code=1, size=None, gone=None),
        review(2, "2026-02-01", code="x", size=2, gone=None),
    ]
    run(store, write_input(tmp_path / "input", rows))
    january = rows_of(store, "2026-01").select(["code", "size", "gone"])
    assert [str(field.type) for field in january.schema] == ["string", "double", "double"]
    assert january.to_pylist() == [{"code": "1", "size": None, "gone": None}]


def test_a_jsonl_record_may_leave_out_null_values(store: DirectoryStore, tmp_path: Path) -> None:
    at = 1_000_000_000
    rows = [{"at": at, "text": "a", "title": "b"}, {"at": at, "text": "c", "id": "r2", "stars": 1, "extra": True}]
    run(store, write_input(tmp_path / "input", rows), span=SpanKind.day)
    table = rows_of(store, "2001-09-09")
    assert table["item"].to_pylist() == ["b", None]
    assert table["extra"].to_pylist() == [None, True]
    assert table["row_id"].to_pylist()[1] == "r2"


def test_progress_counts_bytes_and_then_spans(
    store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_spans, "ROWS_BETWEEN_REPORTS", 2)
    steps: list[Progress] = []
    source = write_input(tmp_path / "input", ROWS)
    run(store, source, report=steps.append)
    size = source.stat().st_size
    assert [(p.what, p.total, p.note) for p in steps] == [
        ("reading input", size, "2 rows"),
        ("reading input", size, "4 rows"),
        ("reading input", size, "4 rows"),
        ("writing spans", 2, "2026-01"),
        ("writing spans", 2, "2026-02"),
    ]
    assert [p.done for p in steps[2:]] == [size, 1, 2]


def test_parts_of_nested_columns_are_columns(store: DirectoryStore, tmp_path: Path) -> None:
    rows = [
        {"meta": {"at": "2026-01-01"}, "request": {"text": "lamp", "user": {"country": "de"}}, "hit": {"title": "Lamp"}}
        | {"raw": {"a": 1}},
        {"meta": {"at": "2026-01-02"}, "request": None, "hit": {"title": "Pot"}, "raw": None},
    ]
    mapping = {"query": "request.text", "item": "hit.title"}
    for form in (Format.jsonl, Format.parquet):
        source = write_input(tmp_path / f"nested.{form}", rows, form)
        summary = ingest(store, source, form, "meta.at", SpanKind.month, mapping)
        assert summary.rows == 2
    table = rows_of(store, "2026-01")
    assert table.select(["query", "item"]).to_pylist() == [
        {"query": "lamp", "item": "Lamp"},
        {"query": None, "item": "Pot"},
    ]
    assert table.column_names[len(CORE) :] == ["raw", "request.user.country"]
    assert table["request.user.country"].to_pylist() == ["de", None]
    assert table["raw"].to_pylist() == ['{"a": 1}', None], "no name enters it, so it stays JSON"
    with pytest.raises(DataError, match=r"'request\.words'.*\.text"):
        ingest(
            store, tmp_path / "nested.jsonl", Format.jsonl, "meta.at", SpanKind.month, mapping | {"id": "request.words"}
        )


def test_items_with_more_than_one_text_are_counted(store: DirectoryStore, tmp_path: Path) -> None:
    texts = [("i1", "lamp"), ("i2", "pot"), ("i1", "red lamp"), ("i2", "pot"), ("i1", "lamp"), ("i3", None)]
    rows = [review(n, "2026-01-01", sku=sku, title=title) for n, (sku, title) in enumerate(texts)]
    summary = run(store, write_input(tmp_path / "input", rows), mapping=MAP | {"item_id": "sku"})
    assert [" 1; the newest" in note for note in summary.notes] == [True]


@pytest.mark.parametrize(("name", "delimiter"), [("semicolon", ";"), ("tab", "\t"), ("pipe", "|")])
def test_a_delimiter_is_found_in_the_file_and_said(
    store: DirectoryStore, tmp_path: Path, name: str, delimiter: str
) -> None:
    lines = [
        ["at", "text", "title", "price"],
        ["2026-01-01", "a, b", "Lamp", "1,5"],
        ["2026-01-02", "c", "Pot, big", "2"],
    ]
    source = tmp_path / "input.csv"
    source.write_text("\ufeff" + "\r\n".join(delimiter.join(cells) for cells in lines), "utf-8")
    summary = run(store, source, Format.csv, mapping={"query": "text", "item": "title"})
    assert [name in note for note in summary.notes] == [True]
    assert rows_of(store, "2026-01")["item"].to_pylist() == ["Lamp", "Pot, big"]


def test_a_csv_file_without_a_header_is_named_as_such(store: DirectoryStore, tmp_path: Path) -> None:
    source = tmp_path / "input.csv"
    source.write_text("r1,2026-01-01,keeps water hot,Kettle\nr2,2026-01-02,broke soon,Lamp\n")
    with pytest.raises(DataError, match=r"header: r1, 2026-01-01"):
        run(store, source, Format.csv)
    source.write_text("id;at;words;title\nr1;2026-01-01;keeps water hot;Kettle\n")
    with pytest.raises(DataError, match=r"'text'.* at, id, title"):
        run(store, source, Format.csv, mapping={"query": "text", "item": "title"})


def test_nan_is_a_missing_number_in_every_format(store: DirectoryStore, tmp_path: Path) -> None:
    rows = [review(1, "2026-01-01", stars=float("nan"), price=float("nan")), review(2, "2026-01-02", text="nan")]
    found = []
    for form in Format:
        run(store, write_input(tmp_path / f"input.{form}", rows, form), form, known="replace")
        latest = [ref.version for ref in list_spans(store)][-1]
        found.append(rows_of(store, "2026-01", latest).select(["query", "label", "price"]).to_pylist())
    assert found[0] == [
        {"query": "review 1", "label": None, "price": None},
        {"query": "nan", "label": 2.0, "price": 3.0},
    ]
    assert found[1:] == found[:1] * (len(Format) - 1)


MEASURE = """
import re, sys
from pathlib import Path
from infra.store.factory import open_store
from tasks.data.ingest import ingest
from tasks.data.files.formats import Format
from tasks.contracts.spans import SpanKind
source, form, workspace = sys.argv[1:]
names = {"query": "text", "item": "title", "id": "id", "item_id": "id"}
summary = ingest(open_store(workspace), Path(source), Format(form), "at", SpanKind.month, names)
print(summary.rows, re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a process is read from /proc")
@pytest.mark.parametrize(
    ("form", "packed"),
    [(Format.jsonl, True), (Format.csv, False), (Format.parquet, False), (Format.parquet, True)],
)
def test_memory_does_not_grow_with_the_input(tmp_path: Path, form: Format, packed: bool) -> None:
    rows = [
        review(n, f"2026-{n % 4 + 1:02d}-01", text=f"{n} bright lamps, {n * n} dark ones " * 40) for n in range(300)
    ]
    peaks = {}
    for copies in (1, 50):
        source = write_input(tmp_path / f"{copies}", rows * copies, form, packed)
        command = [sys.executable, "-c", MEASURE, str(source), form.value, str(tmp_path / f"workspace-{copies}")]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        ingested, peaks[copies] = (int(number) for number in done.stdout.split())
        assert ingested == 300 * copies
    assert peaks[50] < 1.1 * peaks[1], "kept in memory, the rows would add 15 %"


@pytest.mark.skipif(not REVIEWS.exists(), reason="the sample of product reviews is not on this machine")
def test_real_reviews_by_quarter(store: DirectoryStore) -> None:
    mapping = parse_map("query=text,item=product_title,item_id=asin,id=review_id,label=rating")
    summary = ingest(store, REVIEWS, Format.jsonl, "timestamp", SpanKind.quarter, mapping)
    assert summary.rows == sum(span.rows for span in summary.spans) == 2990
    rows = {span.name: span.rows for span in summary.spans}
    assert [rows[f"2022-Q{quarter}"] for quarter in (1, 2, 3, 4)] == [205, 168, 147, 211]
    table = rows_of(store, "2022-Q4")
    assert table.column_names == [*CORE, "brand", "category", "price", "review_title"]
    assert str(table.schema.field("price").type) == "double"
    assert 0 < table["price"].null_count < len(table)


def test_an_item_that_is_an_id_and_a_price_that_is_text_are_named(store: DirectoryStore, tmp_path: Path) -> None:
    rows = [review(number, "2026-02-01", title=f"B{number % 7:03}", price=f"{number},49") for number in range(40)]
    summary = run(store, write_input(tmp_path / "x.csv", rows, Format.csv), Format.csv)
    said = {problem.kind: problem.text for problem in summary.problems}
    assert "map item_id=title" in said["ids"]
    assert "--decimal , " in said["decimal"]
    assert {each.name: each.role for each in summary.columns if each.role} == {
        "at": "time",
        **{v: k for k, v in MAP.items()},
    }


def test_types_and_empty_values_are_those_of_all_rows(store: DirectoryStore, tmp_path: Path) -> None:
    rows = [review(n, "2026-02-01", price=None if n % 2 else n, brand="x" if n == 4000 else n) for n in range(4500)]
    summary = run(store, write_input(tmp_path / "x.csv", rows, Format.csv), Format.csv)
    price, brand = (each for each in summary.columns if each.name in ("price", "brand"))
    assert (price.type, price.nulls, brand.type) == ("number", 2250, "text")
    assert ["brand" in problem.text for problem in summary.problems if problem.kind == "odd"] == [True]


EXCEL = Spelling(decimal=",", dayfirst=True, true=("ja",), false=("nein",))
POT = {"id": "r1", "at": "03.02.2026 08:30", "text": "1,5 l pot", "title": "Topf", "stars": "4,5", "price": "1.043,49"}
EXCEL_ROWS = [{**POT, "new": "ja"}, {**POT, "id": "r2", "at": "20.02.2026", "stars": "ja", "price": "7", "new": "Nein"}]


def test_an_export_of_a_european_excel_is_read_as_values(store: DirectoryStore, tmp_path: Path) -> None:
    path = write_input(tmp_path / "x.csv", EXCEL_ROWS, Format.csv)
    run(store, path, Format.csv, spelling=EXCEL)
    rows = rows_of(store, "2026-02").to_pylist()
    values = [(row["price"], row["new"], row["label"], row["query"]) for row in rows]
    assert values == [(1043.49, True, 4.5, "1,5 l pot"), (7.0, False, 1.0, "1,5 l pot")]
    assert [row["time"].strftime("%Y-%m-%d %H:%M") for row in rows] == ["2026-02-03 08:30", "2026-02-20 00:00"]
    assert read_manifest(store, "spans/2026-02/v1").facts["spelling"] == EXCEL.model_dump(mode="json")
    assert versions(run(store, path, Format.csv, spelling=EXCEL)) == [("2026-02", 1, 2, False)]


def test_a_column_of_other_texts_keeps_its_commas(store: DirectoryStore, tmp_path: Path) -> None:
    rows = [EXCEL_ROWS[0], {**EXCEL_ROWS[1], "price": "auf Anfrage", "new": "vielleicht"}]
    run(store, write_input(tmp_path / "x.csv", rows, Format.csv), Format.csv, spelling=EXCEL)
    values = [(row["price"], row["new"]) for row in rows_of(store, "2026-02").to_pylist()]
    assert values == [("1.043,49", "ja"), ("auf Anfrage", "vielleicht")]


def test_another_spelling_of_the_same_file_names_the_options_of_the_version_before(
    store: DirectoryStore, tmp_path: Path
) -> None:
    rows = [{**row, "at": "2026-02-03", "stars": 1} for row in EXCEL_ROWS]
    path = write_input(tmp_path / "x.csv", rows, Format.csv)
    run(store, path, Format.csv, spelling=EXCEL)
    with pytest.raises(ConfigError, match="--dayfirst --true ja"):
        run(store, path, Format.csv)


def test_texts_that_an_option_would_read_are_named_with_it(store: DirectoryStore, tmp_path: Path) -> None:
    path = write_input(tmp_path / "x.csv", EXCEL_ROWS, Format.csv)
    with pytest.raises(DataError, match="--dayfirst"):
        run(store, path, Format.csv)
    with pytest.raises(DataError, match=r"'4,5' .*--decimal ,"):
        run(store, path, Format.csv, spelling=Spelling(dayfirst=True))


def test_a_span_with_far_fewer_rows_than_usual_is_named(store: DirectoryStore, tmp_path: Path, golden: Golden) -> None:
    """An outage; a span that is not over yet is no outage."""
    today = dt.datetime.now(dt.UTC)
    months = [f"2026-0{month}" for month in range(1, 6)]
    days = [f"{month}-{day:02}" for month in months for day in range(1, 5 if month == "2026-04" else 29)]
    some = [review(number, day) for number, day in enumerate([*days, today.strftime("%Y-%m-%d")])]
    found = [each.text for each in run(store, write_input(tmp_path / "input", some)).problems if each.kind == "few"]
    assert len(found) == 1
    golden(found[0])
    late = [review(900 + number, "2026-06-02") for number in range(3)]
    (again,) = (each for each in run(store, write_input(tmp_path / "late", late)).problems if each.kind == "few")
    assert "2026-06 has 3 rows" in again.text


@pytest.mark.parametrize("form", [Format.csv, Format.parquet])
def test_a_column_that_one_file_lacks_is_missed_though_its_first_row_is_set_apart(tmp_path: Path, form: Format) -> None:
    short = [{"at": "never", "text": "lamp", "id": "r1"}, {"at": "2026-10-02", "text": "rope", "id": "r2"}]
    write_input(tmp_path / f"in/1.{form}", [row | {"title": "Lamp"} for row in short[1:]], form)
    second = write_input(tmp_path / f"in/2.{form}", short, form)
    if form is Format.csv:
        second.write_bytes(second.read_bytes().replace(b"never,lamp,r1", b"never,lamp"))
    store = DirectoryStore(tmp_path / "workspace")
    with pytest.raises(DataError, match=rf"2\.{form}: .*'title'"):
        run(store, tmp_path / "in", form, mapping={"query": "text", "item": "title"}, set_aside=tmp_path / "aside")
