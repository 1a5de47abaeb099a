"""Golden sets: read, refused, stored."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.spans import SpanKind
from tasks.data.canonical import Canonicaliser
from tasks.data.files.formats import Format
from tasks.data.files.readers import SourceRow
from tasks.foundation.errors import ConfigError, DataError
from tasks.judging import golden_set
from tasks.judging.golden_set import read_golden_set, store_golden_set

ROWS = [
    {"query": "red shoe", "item": "a shoe, red", "item_id": "s1"},
    {"query": "lamp", "item": "desk lamp", "item_id": "7"},
]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


def write(folder: Path, name: str, rows: list[dict]) -> str:
    file = folder / name
    if name.endswith(".parquet"):
        pq.write_table(pa.Table.from_pylist(rows), file)
    elif name.endswith(".csv"):
        lines = [",".join(rows[0]), *(",".join(f'"{value}"' for value in row.values()) for row in rows)]
        file.write_text("\n".join(lines) + "\n")
    else:
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(file)


def test_the_same_rows_are_the_same_golden_set_in_any_format(store: DirectoryStore, tmp_path: Path):
    keys = {store_golden_set(store, write(tmp_path, name, ROWS)) for name in ("g.csv", "g.jsonl", "g.parquet")}
    (key,) = keys
    kept = pq.read_table(store.path(key)).to_pylist()
    assert [(row["query"], row["item"], row["item_id"]) for row in kept] == [tuple(row.values()) for row in ROWS]
    assert len({row["row_id"] for row in kept}) == 2
    changed = write(tmp_path, "g.csv", [ROWS[0], {**ROWS[1], "query": "a lamp"}])
    assert store_golden_set(store, changed) != key


def test_without_an_id_an_item_has_that_of_a_row_with_its_text(tmp_path: Path):
    file = Path(write(tmp_path, "g.jsonl", [{"query": "lamp", "item": "desk lamp"}]))
    values = {"query": "lamp", "item": "desk lamp", "at": "2026-01-01"}
    ingested = Canonicaliser(Format.jsonl, "at", SpanKind.month, {"query": "query", "item": "item"})
    row = ingested.convert(SourceRow(file, 1, values))
    assert read_golden_set(file)[0].item_id in row.core


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"query": "lamp", "title": "desk lamp"}], r"g\.jsonl, row 1, column 'item': missing.*title"),
        ([ROWS[0], {"query": " ", "item": "desk lamp"}], "row 2, column 'query': empty"),
        ([ROWS[0], {**ROWS[1], "item_id": "s1"}], "item 's1' has two texts"),
        ([ROWS[0], {**ROWS[1], "item_id": "null"}], "row 2, column 'item_id': no id"),
        ([ROWS[0], {"query": "lamp", "item": "desk lamp"}], "row 2, column 'item_id': no id"),
    ],
)
def test_rows_that_cant_be_used_are_named(tmp_path: Path, rows: list[dict], says: str):
    with pytest.raises(DataError, match=says):
        read_golden_set(Path(write(tmp_path, "g.jsonl", rows)))


@pytest.mark.parametrize("name", ["g.csv", "g.jsonl", "g.parquet"])
def test_a_file_of_good_and_bad_grades_is_refused_with_a_command_that_keeps_the_good(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
):
    """Else a row that raters called irrelevant is a right answer."""
    monkeypatch.chdir(tmp_path)
    graded = [{**row, "grade": grade} for row, grade in zip(ROWS, (4, 1), strict=True)]
    with pytest.raises(DataError, match=r"'grade' .*'1' to '4'") as refused:
        read_golden_set(Path(write(tmp_path, name, graded)))
    subprocess.run([sys.executable, "-c", str(refused.value).partition("in Python: ")[2]], check=True)
    assert [row.item_id for row in read_golden_set(Path("right.csv"))] == ["s1"]
    read_golden_set(Path(write(tmp_path, name, [{**row, "grade": 4} for row in ROWS])))


def test_a_golden_set_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(golden_set, "MOST_ROWS", 1)
    with pytest.raises(DataError, match="more than 1 rows"):
        read_golden_set(Path(write(tmp_path, "g.jsonl", ROWS)))


def test_a_file_that_is_not_there_or_of_another_format_is_named(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"evaluate\.golden: .*none\.csv"):
        read_golden_set(tmp_path / "none.csv")
    (tmp_path / "g.xlsx").write_text("")
    with pytest.raises(ConfigError, match=r"g\.xlsx is none of"):
        read_golden_set(tmp_path / "g.xlsx")


@pytest.mark.parametrize("column", ["query", "item_id", "grade"])
def test_bytes_that_are_no_text_are_named(tmp_path: Path, column: str):
    file = write(tmp_path, "golden.parquet", [row | {column: b"caf\xe9"} for row in ROWS])
    with pytest.raises(DataError, match=rf"row 1, column '{column}'"):
        read_golden_set(Path(file))


def test_a_feed_in_xml_is_no_golden_set(tmp_path: Path):
    file = tmp_path / "golden.xml"
    file.write_text("<rss><item><query>a</query><item>b</item><grade>1</grade></item></rss>")
    with pytest.raises(ConfigError, match=r"golden\.xml .*\.jsonl"):
        read_golden_set(file)
