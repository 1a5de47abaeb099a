"""Records and pages without an erased value: its objects go, sentences get a mark, keys of the workspace stay."""

from __future__ import annotations

import json
import unicodedata

import pytest

from tasks.erase.records import Journal, NewFile
from tasks.erase.text import Redaction, changed_page, changed_record
from tasks.erase.wanted import Wanted

NOTHING = Journal(files={}, sha256={}, counts={}, spans={}, trained=())
KEY = "runs/4f2a/release/changes.json"


def redaction(value: str = "item-0017", *texts: str) -> Redaction:
    return Redaction(Wanted("item_id", value, {"2021-Q1": {"Q1-row-0017"}}, set(texts)))


def changed(record: object, by: Redaction, journal: Journal = NOTHING, key: str = KEY) -> object:
    after = changed_record(key, json.dumps(record).encode(), journal, by)
    return record if after is None else json.loads(after)


def test_an_object_of_a_list_goes_with_its_item_and_others_stay():
    hits = [{"item_id": "item-0017", "text": "a"}, {"item_id": "item-00170", "text": "b"}]
    assert changed({"new": hits}, redaction()) == {"new": hits[1:]}


def test_a_sentence_gets_a_mark_where_the_value_is_a_word_of_its_own():
    text = "item 'item-0017' and item-0017, not item-00170 nor my-item-0017; row Q1-row-0017."
    expected = "item (erased) and (erased), not item-00170 nor my-item-0017; row (erased)."
    assert changed({"sentence": text}, redaction()) == {"sentence": expected}


def test_a_value_goes_in_each_form_of_unicode():
    composed, apart = (unicodedata.normalize(form, "Zoë-0017") for form in ("NFC", "NFD"))
    record = {"sentence": f"{composed} and {apart}.", "hits": [{"item_id": composed}, {"item_id": apart}]}
    assert changed(record, redaction(composed)) == {"sentence": "(erased) and (erased).", "hits": []}
    assert [redaction(composed).holds(f"<{form}>".encode()) for form in (composed, apart, "Zoe-0017")] == [1, 1, 0]


@pytest.mark.parametrize("value", ["7", "42", "main"])
def test_a_value_that_means_other_things_too_goes_only_from_fields_and_quotes(value):
    record = {"rows": 42, "lineage": "main", "sentence": f"42 rows of main, the first '{value}'", "item_id": value}
    expected = {**record, "sentence": "42 rows of main, the first (erased)", "item_id": "(erased)"}
    assert changed(record, redaction(value)) == expected


def test_settings_and_keys_stay_as_they_are():
    record = {"config": {"lineage": "item-0017"}, "prefix": "spans/item-0017/v1"}
    assert changed(record, redaction()) == record


def test_checksums_and_counts_follow_the_files():
    new = NewFile(sha256="b" * 64, bytes=5, removed=2)
    journal = Journal(
        files={"a" * 64: new},
        sha256={"d" * 64: "e" * 64, "f" * 64: "c" * 64},
        counts={"catalogue/x": {"items": 8}},
        spans={},
        trained=(),
    )
    note = {"file": {"name": "part-00000.parquet", "bytes": 9, "sha256": "a" * 64}, "vectors": 10, "reused": 10}
    catalogue = {"prefix": "catalogue/x", "items": 10, "sha256": "d" * 64}
    assert changed({"catalogue": catalogue}, redaction(), journal) == {
        "catalogue": {"prefix": "catalogue/x", "items": 8, "sha256": "e" * 64}
    }
    after = changed({**note, "ids_sha256": "f" * 64}, redaction(), journal)
    file = {"name": "part-00000.parquet", "bytes": 5, "sha256": "b" * 64}
    assert after == {"file": file, "vectors": 8, "reused": 8, "ids_sha256": "c" * 64}
    assert changed(after, redaction(), journal) == after, "a second time changes nothing"


def test_a_page_loses_a_cell_however_short_and_a_text_with_marks_of_html():
    page = b"<td>7</td><td>17</td><p>7 rows</p><td>Lamp &amp; shade, red</td>"
    after = changed_page(page, redaction("7", "Lamp & shade, red"))
    assert after == b"<td>(erased)</td><td>17</td><p>7 rows</p><td>(erased)</td>"
