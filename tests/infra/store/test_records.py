"""Records are read in one way, and the error names file, field and way out."""

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import CorruptFolder
from infra.store.records import find_record, read_record
from tasks.contracts.references import SpanRef
from tasks.foundation.errors import StoreError

KEY = "spans/one.json"


def test_a_record_is_read_back(tmp_path: Path) -> None:
    store, span = DirectoryStore(tmp_path), SpanRef(name="2026-W47", version=1)
    assert find_record(store, KEY, SpanRef) is None
    store.write(KEY, span.to_json())
    assert read_record(store, KEY, SpanRef) == find_record(store, KEY, SpanRef) == span


@pytest.mark.parametrize(("raw", "field"), [(b'{"name": "2026-W47", "version": 0}', "version"), (b"{", "file")])
def test_a_damaged_record_is_an_error_of_the_class_asked_for(tmp_path: Path, raw: bytes, field: str) -> None:
    store = DirectoryStore(tmp_path)
    store.write(KEY, raw)
    with pytest.raises(CorruptFolder, match=f"{KEY} is not a valid span ref: {field}: .*; ingest it again"):
        find_record(store, KEY, SpanRef, "ingest it again", CorruptFolder)


def test_a_missing_record_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{KEY} is gone; ingest it again"):
        read_record(DirectoryStore(tmp_path), KEY, SpanRef, "ingest it again")
