"""Rows with erased values, found by hash in any type of column."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pyarrow as pa
import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.erasing import ErasedTables
from tasks.contracts.spans import SpanKind
from tasks.data.erased import Erasures, hash_of_value
from tasks.data.files.spelling import Spelling
from tasks.data.ingest import IngestOptions, ingest
from tasks.data.new_versions import Known
from tasks.erase.erase import erase


def erasures(column: str, *values: object) -> Erasures:
    return Erasures({column: frozenset(hash_of_value(column, value) for value in values)})


@pytest.mark.parametrize(
    ("column", "left"),
    [
        (pa.array(["7", "70", None, "7.0"]), ["70", None]),
        (pa.array([7.0, 70.0, None, 7.5]), [70.0, None, 7.5]),
        (pa.array(["7", "8", None]).dictionary_encode(), ["8", None]),
    ],
)
def test_a_whole_number_is_equal_to_its_text_and_null_to_nothing(column, left):
    table = pa.table({"user_id": column})
    assert erasures("user_id", "7").without(table)["user_id"].to_pylist() == left


def test_one_text_in_another_form_of_unicode_is_one_value():
    forms = [unicodedata.normalize(form, "José-é1") for form in ("NFC", "NFD")]
    table = pa.table({"user_id": [*forms, "José-\u0065\u03011", "Jose-e1", "JOSÉ-É1"]})
    for form in forms:
        assert erasures("user_id", form).without(table)["user_id"].to_pylist() == ["Jose-e1", "JOSÉ-É1"]


def test_a_value_of_another_column_stays():
    table = pa.table({"item_id": ["a", "b"], "user_id": ["b", "a"]})
    assert erasures("item_id", "a").without(table)["user_id"].to_pylist() == ["a"]
    assert erasures("shop", "a").without(table) is table


@pytest.mark.parametrize(
    ("name", "content", "value", "spelling"),
    [
        ("user", "at,q,title,user\n2026-10-01,a,A,{}7\n2026-10-02,b,B,8\n", "7", Spelling()),
        ("user", "at,q,title,user\n2026-10-01,a,A,  7\n2026-10-02,b,B,  8\n", "7", Spelling()),
        ("user", "at,q,title,user\n2026-10-01,a,A,+7\n2026-10-02,b,B,8\n", "7", Spelling()),
        ("user", "at;q;title;user\n2026-10-01;a;A;4.711\n2026-10-02;b;B;8\n", "4711", Spelling(decimal=",")),
        ("time_source", "at,q,title,time\n2026-10-01,a,A,x7\n2026-10-02,b,B,x8\n", "x7", Spelling()),
        ("label_source", "at,q,title,label\n2026-10-01,a,A,x7\n2026-11-02,b,B,x8\n", "x7", Spelling()),
    ],
)
def test_an_erased_row_stays_away_however_its_source_writes_the_value(
    tmp_path: Path, name: str, content: str, value: str, spelling: Spelling
) -> None:
    store, source = DirectoryStore(tmp_path / "workspace"), tmp_path / "log.csv"
    source.write_text(content.format(""))

    def once_more() -> tuple[int, int]:
        options = IngestOptions(spelling=spelling, known=Known.replace)
        made = ingest(store, source, None, "at", SpanKind.month, {"query": "q", "item": "title"}, options=options)
        return made.rows, len(made.spans)

    assert once_more() == (2, len({*re.findall(r"2026-1[01]", content)}))
    erase(store, name, value, dry_run=False, say=lambda _: None, ask=lambda _: ErasedTables(tables=()))
    assert once_more() == (1, 1)
