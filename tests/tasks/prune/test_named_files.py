"""Files that a kept release names in folders of releases that go: prune, a second prune, and the folder made again."""

from pathlib import Path

import pytest

from configs.schema.operations import PruneConfig
from infra.store.base import Store, sha256_of
from infra.store.directory import DirectoryStore
from infra.store.manifest import (
    CorruptFolder,
    FileEntry,
    check_sizes,
    next_folder,
    open_file,
    open_files,
    open_folder,
    read_manifest,
    seal,
)
from infra.store.records import place
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.pruning import Folder
from tasks.contracts.references import CatalogueRef
from tasks.prune import prune
from tasks.prune.prune_plan import plan_prune
from tasks.prune.reach import Reach
from tasks.runs.done import check_outputs

OLD, NEW = "vectors/m-1/one", "vectors/m-1/two"


def put(store: Store, folder: Path, prefix: str, name: str, content: bytes) -> FileEntry:
    source = folder / "source"
    source.write_bytes(content)
    entry = FileEntry(name=name, bytes=len(content), sha256=sha256_of(source))
    place(store, source, f"{prefix}/{name}")
    return entry


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """OLD has two files; NEW has one of its own and names the other of OLD."""
    made = DirectoryStore(tmp_path / "workspace")
    old = [put(made, tmp_path, OLD, f"part-0000{number}.parquet", b"old %d" % number) for number in (0, 1)]
    seal(made, OLD, tuple(old), "vectors", {})
    own = put(made, tmp_path, NEW, "part-00000.parquet", b"new 0")
    seal(made, NEW, (own, old[1].named_from(OLD)), "vectors", {})
    return made


def reach(*folders: str) -> Reach:
    nothing = frozenset[str]()
    return Reach((), frozenset(folders), nothing, nothing, nothing, nothing, {1: (OLD, OLD), 2: (NEW, NEW)})


def pruned(store: Store, *needed: str) -> list[Folder]:
    plan = plan_prune(store, PruneConfig.newest(1), reach(*needed))
    for folder in plan.folders:
        prune._delete(store, folder)
    return list(plan.folders)


def test_every_reader_finds_a_named_file_where_it_lies(store: DirectoryStore) -> None:
    manifest = check_sizes(store, NEW)
    assert [path.read_bytes() for path in open_files(store, NEW, "vectors")] == [b"new 0", b"old 1"]
    assert open_file(store, NEW, manifest, "part-00001.parquet").read_bytes() == b"old 1"
    assert manifest.files[1].named_from(NEW).at == f"{OLD}/part-00001.parquet", "never the manifest that names it"
    store.path(f"{OLD}/part-00001.parquet").write_bytes(b"OLD 1")
    check_sizes(store, NEW)
    with pytest.raises(CorruptFolder, match="its checksum"):
        open_folder(store, NEW, "vectors")
    store.delete(f"{OLD}/part-00001.parquet")
    with pytest.raises(CorruptFolder, match="is gone, though"):
        check_sizes(store, NEW)


def test_a_named_file_outlives_its_folder_until_nothing_names_it(store: DirectoryStore) -> None:
    (folder,) = pruned(store, NEW)
    assert (folder.folder, folder.named) == (OLD, (f"{OLD}/part-00001.parquet",))
    assert (folder.files, store.list(OLD)) == (2, [f"{OLD}/part-00001.parquet"])
    open_folder(store, NEW, "vectors")
    assert pruned(store, NEW) == [], "nothing is left to delete"
    assert {each.folder for each in pruned(store)} == {OLD, NEW}
    assert store.list("vectors") == []


def test_a_kill_in_the_middle_leaves_the_named_files(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> None:
    original = DirectoryStore.delete

    def die(self: DirectoryStore, key: str) -> None:
        if key.endswith("part-00000.parquet"):
            raise KeyboardInterrupt
        original(self, key)

    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "delete", die)
        with pytest.raises(KeyboardInterrupt):
            pruned(store, NEW)
    open_folder(store, NEW, "vectors")
    assert next_folder(store, OLD, ".") == f"{OLD}.2", "it may be deleted from, by a prune that stands still"
    pruned(store, NEW)
    assert store.list(OLD) == [f"{OLD}/part-00001.parquet"]


def test_the_name_of_a_pruned_folder_is_not_used_again(store: DirectoryStore) -> None:
    """A deletion may still be under way there, and files that others name stay there."""
    assert next_folder(store, OLD, ".") == OLD
    pruned(store, NEW)
    assert next_folder(store, OLD, ".") == f"{OLD}.2"
    pruned(store)
    assert next_folder(store, NEW, ".") == f"{NEW}.2"


def test_two_who_name_other_places_of_equal_files_agree(store: DirectoryStore) -> None:
    files = read_manifest(store, NEW).files
    elsewhere = tuple(entry.model_copy(update={"at": f"vectors/m-1/three/{entry.name}"}) for entry in files)
    seal(store, NEW, elsewhere, "vectors", {})
    assert read_manifest(store, NEW).files == files


def test_a_damaged_folder_that_others_name_stays_as_it_is(store: DirectoryStore) -> None:
    """Other releases may name its files."""
    store.delete(f"{OLD}/part-00000.parquet")
    catalogue = CatalogueRef(prefix="catalogue/one", items=2, partitions=2, sha256="0")
    outcome = InferOutcome(
        prefix=OLD, vectors=2, width=2, shards=2, shards_reused=0, texts_per_second=1.0, catalogue=catalogue,
        ids_sha256="0",
    )  # fmt: skip
    with pytest.raises(CorruptFolder, match=r"part-00000\.parquet is"):
        check_outputs(store, outcome)
    assert store.list(OLD) == [f"{OLD}/MANIFEST.json", f"{OLD}/part-00001.parquet"]
    open_folder(store, NEW, "vectors")
