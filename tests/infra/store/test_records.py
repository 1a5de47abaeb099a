"""Records are read in one way, and the error names file, field and way out."""

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import CorruptFolder
from infra.store.records import find_record, read_record, update_record
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


def test_a_change_is_made_of_the_record_that_is_there_by_then(tmp_path: Path) -> None:
    """Two processes add one each, and the second one is the faster."""
    store, rival = DirectoryStore(tmp_path), DirectoryStore(tmp_path)

    def next_version(there: SpanRef | None) -> SpanRef:
        return SpanRef(name="2026-W47", version=there.version + 1 if there else 1)

    def slowly(there: SpanRef | None) -> SpanRef:
        if there is None or there.version == 2:
            update_record(rival, KEY, SpanRef, next_version)
        return next_version(there)

    for version in (2, 4):
        assert update_record(store, KEY, SpanRef, slowly) == SpanRef(name="2026-W47", version=version)
    assert update_record(store, KEY, SpanRef, lambda there: None) == read_record(store, KEY, SpanRef)
