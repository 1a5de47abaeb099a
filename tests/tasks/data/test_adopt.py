"""Spans that another engine wrote: the writer of the page, adopted and validated; and files that break the contract."""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import MANIFEST, read_manifest
from tasks.contracts.erasing import ErasedTables
from tasks.contracts.references import FeedRef, SpanRef
from tasks.contracts.spans import SpanKind
from tasks.data.adopt import adopt
from tasks.data.canonical import ITEMS
from tasks.data.ingest import IngestOptions, ingest
from tasks.data.new_versions import Difference, Known
from tasks.data.rows import has_ids_alone
from tasks.data.span_versions import list_feeds, list_spans
from tasks.erase.erase import erase
from tasks.foundation.errors import ConfigError, DataError
from tasks.preflight.checks import check_columns, check_numbers
from tasks.worker import validate
from tasks.worker.catalogue.build import build
from tasks.worker.catalogue.records import Catalogue
from tasks.worker.catalogue.sources import Sources
from tasks.worker.rows.row_checks import open_span
from tests.docs.test_pages import named_commands
from tests.support.pages.golden import Golden
from tests.support.processes.command import call
from tests.support.workspace.jobs import tiny_config
from tests.support.workspace.spans import job
from tests.support.workspace.stores import STORES

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "data.md").read_text(encoding="utf-8")
SPAN = SpanRef(name="2026-W47", version=1)
WRITER = """
    SELECT 'r' || i AS row_id, TIMESTAMPTZ '2026-11-16 00:00:00+00' + INTERVAL (i) HOUR AS time, 'lamp ' || i AS query,
        'Lamp ' || (i % 7) AS item, 'L' || (i % 7) AS item_id, (i % 2)::DOUBLE AS label, i::DOUBLE AS price
    FROM range(100) AS made(i)
"""


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


def write(store: DirectoryStore, query: str, name: str = "part-00000.parquet", span: SpanRef | FeedRef = SPAN) -> str:
    """Write the rows of a query as another engine does; return the folder."""
    folder = store.path(span.prefix)
    folder.mkdir(parents=True, exist_ok=True)
    duckdb.sql(f"COPY ({query}) TO '{folder / name}' (FORMAT parquet, ROW_GROUP_SIZE 2048)")
    return str(folder)


def test_the_writer_of_the_page_writes_a_span_that_is_adopted_and_validated(
    store: DirectoryStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    golden: Golden,
) -> None:
    monkeypatch.chdir(tmp_path)
    duckdb.sql("""
        COPY (SELECT 'r' || i AS id, TIMESTAMP '2026-11-15 12:00:00' + INTERVAL (i * 3) HOUR AS clicked_at,
            'light ' || i AS search, 'Lamp ' || (i % 7) AS title, 'L' || (i % 7) AS sku, i % 2 AS clicks, i AS price
            FROM range(100) AS made(i)
        ) TO 'log.parquet'
    """)
    (code,) = re.findall(r"```python\n(import duckdb, pathlib\n.*?)```", PAGE, re.S)
    exec(code, {})
    before = {path.name: path.stat() for path in store.path(SPAN.prefix).iterdir()}
    monkeypatch.setenv("MILLRACE_WORKSPACE", str(tmp_path / "workspace"))
    (command,) = (words for words in named_commands(PAGE) if words[0] == "adopt")
    said = call(capsys, *command)
    assert said.code == 0, said.err
    golden(said.out)
    assert list_spans(store) == [SPAN]
    after = {path.name: path.stat() for path in store.path(SPAN.prefix).iterdir() if path.name != MANIFEST}
    assert {name: each.st_mtime_ns for name, each in after.items()} == {n: e.st_mtime_ns for n, e in before.items()}
    outcome = validate.judge(
        job(store, [SPAN], overrides=["features.numeric=[price]", "features.categorical=[]", "evaluate.slices=[]"])
    )
    assert (outcome.rows_clean, outcome.reasons) == (56, {})


@pytest.mark.parametrize("kind", STORES)
def test_several_files_without_texts_are_a_log_of_ids(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store, drafts = STORES[kind](request), DirectoryStore(tmp_path / "drafts")
    rows = WRITER.replace("'Lamp ' || (i % 7) AS item,", "NULL::VARCHAR AS item,")
    write(drafts, rows, "part-1.parquet")
    write(drafts, rows.replace("'r' ||", "'s' ||"), "part-2.parquet")
    drafts.write(f"{SPAN.prefix}/_SUCCESS", b"")
    for key in drafts.list(SPAN.prefix):
        store.write(key, drafts.read(key))
    adopted = adopt(store, f"{store.uri}/{SPAN.prefix}/")
    assert (adopted.rows, adopted.ids_alone, has_ids_alone(store, SPAN)) == (200, True, True)
    assert [entry.name for entry in read_manifest(store, SPAN.prefix).files] == ["part-1.parquet", "part-2.parquet"]
    assert len(open_span(store, SPAN)) == 2


CASES: dict[str, tuple[Callable[[str], str], str]] = {
    "a column is missing": (
        lambda sql: f"SELECT * EXCLUDE label FROM ({sql})",
        "no column 'label'.*NULL::DOUBLE AS label",
    ),
    "naive times": (
        lambda sql: f"SELECT * REPLACE (time::TIMESTAMP AS time) FROM ({sql})",
        r"column 'time' is timestamp\[us\], but .*CAST\(time AS TIMESTAMP WITH TIME ZONE\)",
    ),
    "whole numbers": (
        lambda sql: f"SELECT * REPLACE (price::BIGINT AS price) FROM ({sql})",
        r"column 'price' is int64, but .*CAST\(price AS DOUBLE\).*or leave the column out",
    ),
    "lists": (lambda sql: f"SELECT *, [price] AS prices FROM ({sql})", r"column 'prices' is list<.*>, but must be"),
    "a row of the next week": (
        lambda sql: f"SELECT * REPLACE (time + INTERVAL 4 DAY AS time) FROM ({sql})",
        "part-00000.parquet row 73: time is 2026-11-23T00:00:00.*outside of span 2026-W47",
    ),
    "no time": (
        lambda sql: f"SELECT * REPLACE (CASE WHEN price <> 8 THEN time END AS time) FROM ({sql})",
        "part-00000.parquet row 9: time is null",
    ),
    "no id": (
        lambda sql: f"SELECT * REPLACE (CASE WHEN price <> 2 THEN row_id END AS row_id) FROM ({sql})",
        "part-00000.parquet row 3: row_id is null",
    ),
    "an id twice": (
        lambda sql: f"SELECT * REPLACE (CASE WHEN price = 5 THEN 'r4' ELSE row_id END AS row_id) FROM ({sql})",
        "part-00000.parquet row 6: row_id is 'r4', as in row 5",
    ),
    "an id that no target can hold": (
        lambda sql: (
            f"SELECT * REPLACE (CASE WHEN price = 1 THEN repeat('x', 3000) ELSE item_id END AS item_id) FROM ({sql})"
        ),
        "part-00000.parquet row 2: item_id an id of more than 2,000 bytes",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_file_that_breaks_the_contract_is_named_with_row_and_column(store: DirectoryStore, case: str) -> None:
    change, problem = CASES[case]
    place = write(store, change(WRITER))
    with pytest.raises(DataError, match=problem):
        adopt(store, place)
    assert not list_spans(store), "nothing is written"


def test_files_that_differ_in_their_columns_or_are_none_are_named(store: DirectoryStore) -> None:
    place = write(store, WRITER)
    write(store, f"SELECT * EXCLUDE price FROM ({WRITER})", "part-00001.parquet")
    with pytest.raises(DataError, match=r"00001.*'price'.*00000"):
        adopt(store, place)
    (store.path(SPAN.prefix) / "part-00001.parquet").write_bytes(b"PAR?")
    with pytest.raises(DataError, match=r"part-00001.parquet is not"):
        adopt(store, place)
    with pytest.raises(DataError, match=r"2026-W48/v1 has no file"):
        adopt(store, "spans/2026-W48/v1")


def test_only_the_next_version_of_a_span_of_the_workspace_is_adopted(store: DirectoryStore, tmp_path: Path) -> None:
    place = write(store, WRITER)
    adopt(store, place)
    with pytest.raises(ConfigError, match=r"version 1 .*2026-W47/v2"):
        adopt(store, place)
    third = write(store, WRITER, span=SPAN.model_copy(update={"version": 3}))
    with pytest.raises(ConfigError, match="files to spans/2026-W47/v2"):
        adopt(store, third)
    for other in (str(tmp_path), "s3://elsewhere/spans/2026-W48/v1", "spans/2026-W48", "spans/2026-W48/v01"):
        with pytest.raises(ConfigError, match=r"to .*spans/2026-W47/v1,"):
            adopt(store, other)
    month = write(store, WRITER, span=SpanRef(name="2026-11", version=1))
    with pytest.raises(ConfigError, match=r"such as '2026-W47'"):
        adopt(store, month)


FEED = FeedRef(name="2026-11", version=1)
RECORDS = """
    SELECT 'L' || (i % 7) AS item_id, CASE WHEN i < 7 THEN 'Lamp ' || i END AS item, i >= 7 AS deleted,
        TIMESTAMPTZ '2026-11-01 00:00:00+00' + INTERVAL (i) HOUR AS time, i::DOUBLE AS price
    FROM range(9) AS made(i)
"""


@pytest.mark.parametrize("kind", STORES)
def test_an_item_feed_is_adopted_and_its_newest_records_make_the_catalogue(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    store, drafts = STORES[kind](request), DirectoryStore(tmp_path / "drafts")
    write(drafts, RECORDS, span=FEED)
    for key in drafts.list(FEED.prefix):
        store.write(key, drafts.read(key))
    adopted = adopt(store, FEED.prefix)
    assert (adopted.kind, adopted.rows, adopted.columns) == ("feed", 9, ("price",))
    assert list_feeds(store) == [FEED]
    made = build(
        store, Sources((), (FEED,)), (), tiny_config("features.numeric=[price]", "model.interaction.kind=both")
    )
    items = pa.concat_tables(Catalogue(store, made).items(0, 100)).sort_by("item_id")
    assert items["item_id"].to_pylist() == [f"L{number}" for number in range(2, 7)], "the others were deleted later"
    with pytest.raises(ConfigError, match=r"version 1 .*2026-11/v2"):
        adopt(store, FEED.prefix)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("SELECT * EXCLUDE deleted FROM", "no column 'deleted'"),
        ("SELECT * REPLACE (CASE WHEN price = 3 THEN NULL ELSE deleted END AS deleted) FROM", "row 4: deleted is null"),
        ("SELECT * REPLACE (CASE WHEN price = 3 THEN NULL ELSE item_id END AS item_id) FROM", "row 4: item_id is null"),
        ("SELECT * REPLACE (time + INTERVAL 1 MONTH AS time) FROM", "outside of span 2026-11"),
    ],
)
def test_a_record_of_a_feed_that_breaks_the_contract_is_named(store: DirectoryStore, change: str, problem: str) -> None:
    place = write(store, f"{change} ({RECORDS})", span=FEED)
    with pytest.raises(DataError, match=problem):
        adopt(store, place)
    assert not list_feeds(store), "nothing is written"


def test_adopted_spans_are_checked_and_erased_from_as_ingested_ones(store: DirectoryStore) -> None:
    adopt(store, write(store, f"SELECT *, 'acme' AS brand FROM ({WRITER})"))
    adopt(store, write(store, RECORDS, span=FEED))
    for feature, found in (
        ("price", None),
        ("brand", "span 2026-W47 v1: column 'brand', which features.numeric names"),
    ):
        config = tiny_config(f"features.numeric=[{feature}]", "features.categorical=[]", "model.interaction.kind=both")
        check_columns(store, config, [SPAN])
        with pytest.raises(DataError, match=found) if found else contextlib.nullcontext():
            check_numbers(store, config, [SPAN])
    erase(store, "item_id", "L3", dry_run=False, say=lambda _: None, ask=lambda _: ErasedTables(tables=()))
    for root in ("spans", "items"):
        left = [pq.read_table(store.path(key)) for key in store.list(root) if key.endswith(".parquet")]
        assert left
        assert all("L3" not in table["item_id"].to_pylist() for table in left)


def test_an_adopted_feed_is_corrected_by_an_ingest(store: DirectoryStore, tmp_path: Path) -> None:
    adopt(store, write(store, RECORDS, span=FEED))
    source, mapping = tmp_path / "feed.csv", {"id": "sku", "text": "title"}
    alike = "".join(f"2026-11-01T0{n}:00:00Z,L{n},Lamp {n},{n}\n" for n in range(7))
    source.write_text(f"at,sku,title,price\n{alike}2026-11-09,L3,Lamp three,3\n")
    made = ingest(store, source, None, "at", SpanKind.month, mapping, ITEMS, options=IngestOptions(known=Known.merge))
    assert made.spans[0].difference == Difference(before=9, changed=0, added=1, gone=0, merged=10)
    assert [ref.version for ref in list_feeds(store)] == [2]
