"""`millrace search` where it can't answer; tests/pipeline searches a real release."""

from pathlib import Path

import pytest

from flows.cli.results import searching
from infra.store.directory import DirectoryStore
from tasks.foundation.errors import ConfigError, StoreError
from tests.support.workspace.past import write_past


def test_an_empty_text_and_a_workspace_without_a_release_are_refused(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    with pytest.raises(ConfigError, match="the text to search for is empty"):
        searching.search(store, "  ", None, 10)
    with pytest.raises(ConfigError, match="has no release to search yet; first: millrace run"):
        searching.search(store, "lamp", None, 10)


def test_what_the_worker_lacks_is_named_with_its_class(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    write_past(store, 1)
    with pytest.raises(StoreError, match=r"/vectors/main-\d+/\S+ has no MANIFEST\.json") as caught:
        searching.search(store, "lamp", None, 10)
    assert "Traceback" not in str(caught.value)
