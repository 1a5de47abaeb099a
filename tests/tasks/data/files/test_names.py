"""Names of columns in options: any that a file has can be given, and the printed commands name it so."""

import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.store.directory import DirectoryStore
from tasks.contracts.spans import SpanKind
from tasks.data.canonical import ROWS
from tasks.data.files.names import pairs_written, written
from tasks.data.files.nested import parse_explode
from tasks.data.ingest import ingest
from tasks.data.look import LookOptions, look
from tasks.data.mapping import parse_map
from tasks.foundation.errors import DataError


@given(
    st.lists(st.text(st.sampled_from('ab ,"=;\n') | st.characters(codec="utf-8"), min_size=1), min_size=3, unique=True)
)
def test_any_name_of_a_column_can_be_written_as_an_option(names: list[str]) -> None:
    columns = dict(zip(("query", "item", "item_id"), names, strict=False))
    assert parse_map(pairs_written(columns.items())) == columns
    assert parse_explode(",".join(map(written, names))) == (*names,)


def test_a_column_with_blanks_or_a_comma_in_its_name_is_ingested_by_the_printed_command(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    rows = "".join(f"2026-10-{n:02}, lamp {n},A lamp {n},S{n}\n" for n in range(1, 29))
    path.write_text(f'at, q,"title, full",sku\n{rows}')
    words = shlex.split(look(path, ROWS, LookOptions()).command)
    mapping = parse_map(words[words.index("--map") + 1])
    assert mapping == {"query": " q", "item": "title, full", "item_id": "sku"}
    assert ingest(DirectoryStore(tmp_path / "ws"), path, None, "at", SpanKind.month, mapping).rows == 28
    with pytest.raises(DataError, match=r"'q'.* \" q\", at, sku"):
        ingest(DirectoryStore(tmp_path / "ws"), path, None, "at", SpanKind.month, parse_map("query=q,item_id=sku"))
