"""Sources that can't be read, through the installed command: one line, the class's exit code, and nothing left."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.demo.search_log import write_shop
from tests.support.workspace.shop import COLUMNS, Shop

pytestmark = pytest.mark.pipeline


def cut_off(source: Path) -> None:
    source.write_bytes(source.read_bytes()[:-400])


def emptied(source: Path) -> None:
    source.write_bytes(gzip.compress(b""))


def without_times(source: Path) -> None:
    """From row 11 on, in the second span, the time is not valid."""
    lines = gzip.decompress(source.read_bytes()).replace(b"2026-02-", b"February ")
    source.write_bytes(gzip.compress(lines))


def untouched(source: Path) -> None:
    assert source.is_file()


@pytest.mark.parametrize(
    ("damage", "columns", "code", "line"),
    [
        (untouched, COLUMNS.replace("=product,", "=title,"), 65, "DATA: {}: missing column 'title'"),
        (cut_off, COLUMNS, 65, "DATA: {}: the compressed data is cut off or damaged"),
        (emptied, COLUMNS, 65, "DATA: {}: the file has no rows"),
        (without_times, COLUMNS, 65, "DATA: {}, row 11, column 'searched_at': 'February "),
        (Path.unlink, COLUMNS, 78, "CONFIG: --source {}: no such file or folder"),
        (untouched, "query=query", 78, "CONFIG: --map: 'item' is missing"),
    ],
    ids=["missing column", "cut off", "empty", "bad time", "no file", "no item in the map"],
)
def test_a_bad_source_is_one_line_and_leaves_nothing(
    tmp_path: Path, damage: Callable[[Path], None], columns: str, code: int, line: str
) -> None:
    source = tmp_path / "shop.jsonl.gz"
    write_shop(source, spans=2, rows_per_span=10, seed=3)
    damage(source)
    shop = Shop(tmp_path / "workspace", tmp_path / "none.yaml", tmp_path / "prefect")
    result = shop.ingest(source, columns)
    assert (result.code, result.out) == (code, "")
    assert result.err.splitlines()[-1].startswith(line.format(source))
    assert "Traceback" not in result.err
    assert shop.files() == {}
    assert not shop.home.exists()
