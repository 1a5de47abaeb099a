import datetime as dt
import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tasks.data import source_spans
from tasks.data.rows import CORE
from tasks.data.source_spans import BuiltSpan, Spools, build_span


def line(number: int, text: str = "", **others: Any) -> bytes:
    return json.dumps([f"r{number}", number, text, "item", "i", None, others]).encode() + b"\n"


def build(tmp_path: Path, lines: list[bytes], **others: str) -> BuiltSpan:
    (tmp_path / "lines").write_bytes(b"".join(lines))
    columns = {name: (name.upper(), kind) for name, kind in others.items()}
    number = len(list(tmp_path.iterdir()))
    return build_span("2026-01", tmp_path / "lines", tmp_path / f"built-{number}", columns)


def test_more_spans_than_open_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_spans, "OPEN_SPOOLS", 2)
    with Spools(tmp_path) as spools:
        for number in range(30):
            spools.append(f"s{number % 5}", b"%d\n" % number)
    assert spools.spans == {"s0", "s1", "s2", "s3", "s4"}
    assert spools.path("s3").read_bytes() == b"3\n8\n13\n18\n23\n28\n"


def test_rows_keep_their_order_over_groups_and_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_spans, "ROWS_IN_GROUP", 10)
    monkeypatch.setattr(source_spans, "ROWS_IN_PART", 40)
    built = build(tmp_path, [line(number) for number in range(95)])
    parts = sorted(built.folder.iterdir())
    assert [part.name for part in parts] == ["part-00000.parquet", "part-00001.parquet", "part-00002.parquet"]
    assert [pq.read_metadata(part).num_rows for part in parts] == [40, 40, 15]
    assert [pq.read_metadata(part).num_row_groups for part in parts] == [4, 4, 2]
    ids = [row for part in parts for row in pq.read_table(part)["row_id"].to_pylist()]
    assert ids == [f"r{number}" for number in range(95)]
    assert built.rows == 95


def test_long_texts_make_smaller_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_spans, "CHARS_IN_GROUP", 1000)
    built = build(tmp_path, [line(number, "x" * 500) for number in range(6)])
    assert pq.read_metadata(built.folder / "part-00000.parquet").num_row_groups == 3


def test_columns_have_their_names_and_types(tmp_path: Path) -> None:
    lines = [line(1_000_000, a=1, b="true", c=1, d="2.5"), line(2, c=True), line(3, c="x", d=3)]
    built = build(tmp_path, lines, a="float64", b="bool", c="string", d="float64")
    table = pq.read_table(built.folder)
    types = {name: str(kind) for name, kind in CORE.items()}
    assert built.columns == types | {"A": "double", "B": "bool", "C": "string", "D": "double"}
    assert {field.name: str(field.type) for field in table.schema} == built.columns
    assert table["time"][0].as_py() == dt.datetime(1970, 1, 1, 0, 0, 1, tzinfo=dt.UTC)
    assert table.select(["A", "B", "C", "D"]).to_pylist() == [
        {"A": 1.0, "B": True, "C": "1", "D": 2.5},
        {"A": None, "B": None, "C": "true", "D": None},
        {"A": None, "B": None, "C": "x", "D": 3.0},
    ]


def test_the_content_hash_depends_on_rows_order_and_types_but_not_on_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = [line(number, a=number) for number in range(10)]
    digest = build(tmp_path, lines, a="float64").content_sha256
    assert build(tmp_path, lines, a="string").content_sha256 != digest
    assert build(tmp_path, lines[::-1], a="float64").content_sha256 != digest
    assert build(tmp_path, lines[:-1], a="float64").content_sha256 != digest
    assert build(tmp_path, lines).content_sha256 != digest
    monkeypatch.setattr(source_spans, "ROWS_IN_GROUP", 3)
    monkeypatch.setattr(source_spans, "ROWS_IN_PART", 3)
    assert build(tmp_path, lines, a="float64").content_sha256 == digest
