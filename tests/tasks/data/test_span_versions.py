from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.references import FeedRef, SpanRef
from tasks.data.span_versions import latest_version, list_feeds, list_spans, noted
from tasks.foundation.errors import ConfigError


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_the_latest_complete_version_counts(store: DirectoryStore) -> None:
    for version in (1, 2, 10):
        store.write(f"spans/2026-02/v{version}/MANIFEST.json", b"{}")
    store.write("spans/2026-02/v11/part-00000.parquet", b"not completed")
    assert latest_version(store, "2026-02") == 10
    assert list_spans(store) == [SpanRef(name="2026-02", version=10)]


def test_spans_are_listed_oldest_first(store: DirectoryStore) -> None:
    for name in ("2026-W10", "2025-W52", "2026-W02"):
        store.write(f"spans/{name}/v1/MANIFEST.json", b"{}")
    assert [span.name for span in list_spans(store)] == ["2025-W52", "2026-W02", "2026-W10"]


def test_incomplete_spans_are_not_listed(store: DirectoryStore) -> None:
    store.write("spans/2026-02/v1/part-00000.parquet", b"")
    store.write("spans/2026-02/v1/deeper/MANIFEST.json", b"{}")
    store.write("spans/2026-02/v0/MANIFEST.json", b"{}")
    assert list_spans(store) == []
    assert latest_version(store, "2026-02") is None
    assert latest_version(store, "2026-03") is None


def test_a_folder_with_another_name_is_an_error(store: DirectoryStore) -> None:
    store.write("spans/old-backup/v1/MANIFEST.json", b"{}")
    with pytest.raises(ConfigError, match="'old-backup' is not a day"):
        list_spans(store)


def test_an_ingest_that_stood_still_hides_no_later_version_of_a_feed(store: DirectoryStore) -> None:
    """Each of two did: one before it completed v2, the other before it noted that v1 is complete."""
    first, second = noted(store, {"2021-Q4": 1}), noted(store, {"2021-Q4": 2})
    first.__enter__()
    store.write("items/2021-Q4/v1/MANIFEST.json", b"{}")
    second.__enter__()
    first.__exit__(None, None, None)
    store.write("items/2021-Q4/v2/MANIFEST.json", b"{}")
    assert list_feeds(store) == [FeedRef(name="2021-Q4", version=2)]
    second.__exit__(None, None, None)
    with noted(store, {"2021-Q4": 1}):
        assert list_feeds(store) == [FeedRef(name="2021-Q4", version=2)]
    assert list_feeds(store) == [FeedRef(name="2021-Q4", version=2)]
