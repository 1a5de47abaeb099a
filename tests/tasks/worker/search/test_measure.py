"""A release that is opened to be searched; tests/tasks/worker/test_release.py measures real ones."""

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import CorruptFolder, read_manifest
from tasks.worker.search.measure import open_released
from tests.support.fakes.fake_runner import commit_files
from tests.support.workspace.releases import write_release


@pytest.mark.parametrize("changed", ["model", "vectors"])
def test_a_folder_that_was_changed_together_with_its_manifest_is_not_opened(tmp_path: Path, changed: str) -> None:
    store = DirectoryStore(tmp_path)
    release = write_release(store, 1)
    commit_files(store, release.model_prefix, {"modules.json": "[]"}, "model")
    named = {"model": release.model_prefix, "vectors": release.vectors_prefix}
    hashes = {f"{of}_sha256": read_manifest(store, prefix).sha256 for of, prefix in named.items()}
    ref = release.model_copy(update=hashes | {f"{changed}_sha256": "0" * 64}).ref
    with pytest.raises(CorruptFolder, match=rf"{named[changed]}/MANIFEST\.json is not the one that was released"):
        open_released(store, ref)
