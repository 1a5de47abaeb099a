"""Files before they are named on: each is read within a bounded number of turns, and damaged ones go to quarantine/."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from infra.store.manifest import (
    MOST_TURNS,
    READ_BYTES,
    CorruptFolder,
    FileEntry,
    check_sizes,
    expect_sound,
    find_damage,
    in_turn,
    next_folder,
    seal,
)
from tests.support.fakes.fake_runner import commit_files

FOLDER = "vectors/m-1/c"
FILES = {f"part-{number:05d}.parquet": f"rows {number}" for number in range(3)}


def entries(count: int, each: int) -> list[FileEntry]:
    return [FileEntry(name=f"part-{number:05d}.parquet", bytes=each, sha256="0") for number in range(count)]


@pytest.mark.parametrize(
    ("files", "turns"), [(entries(8, 10), 1), (entries(128, READ_BYTES // 32), 4), (entries(512, READ_BYTES), 32)]
)
def test_each_file_is_read_once_in_a_round_of_turns(files: list[FileEntry], turns: int):
    for first in (0, 7):
        read = [entry.name for turn in range(first, first + turns) for entry in in_turn(files, turn)]
        assert sorted(read) == sorted(entry.name for entry in files)


def test_no_file_waits_longer_while_the_folder_grows():
    """A refresh adds a shard now and then, and the number of turns doubles on the way."""
    waited: dict[str, int] = {}
    for turn in range(400):
        files = entries(8 + turn * 4, READ_BYTES // 64)
        read = {entry.name for entry in in_turn(files, turn)}
        waited = {entry.name: 0 if entry.name in read else waited.get(entry.name, 0) + 1 for entry in files}
        assert max(waited.values()) < MOST_TURNS


@pytest.mark.parametrize("damage", ["other bytes", "another size", "gone"])
def test_a_damaged_file_goes_to_quarantine_and_every_folder_that_names_it_lacks_it(tmp_path: Path, damage: str):
    store = DirectoryStore(tmp_path)
    manifest = commit_files(store, FOLDER, FILES, "vectors")
    seal(store, "vectors/m-1/next", tuple(entry.named_from(FOLDER) for entry in manifest.files), "vectors", {})
    path = store.path(f"{FOLDER}/part-00001.parquet")
    path.unlink()
    if damage != "gone":
        path.write_bytes(b"ROWS 1" if damage == "other bytes" else b"")
    if damage == "other bytes":
        assert find_damage(store, FOLDER, manifest) == {}, "known by its bytes alone"
    with pytest.raises(CorruptFolder, match=r"part-00001\.parquet"):
        expect_sound(store, FOLDER, manifest, turn=0)
    assert len(store.list("quarantine")) == (damage != "gone")
    for folder in (FOLDER, "vectors/m-1/next"):
        with pytest.raises(CorruptFolder, match=r"part-00001\.parquet is"):
            check_sizes(store, folder)
    assert next_folder(store, FOLDER, ".") == f"{FOLDER}.2"


def test_a_damaged_copy_on_this_machine_is_no_damage(s3):
    store = open_store(s3.new_workspace())
    manifest = commit_files(store, FOLDER, FILES, "vectors")
    copy = store.local(f"{FOLDER}/part-00001.parquet")
    copy.chmod(0o600)
    copy.write_bytes(b"ROWS 1")
    expect_sound(store, FOLDER, manifest)
    store.write(f"{FOLDER}/part-00001.parquet", b"ROWS 1")
    with pytest.raises(CorruptFolder, match=r"part-00001\.parquet does"):
        expect_sound(store, FOLDER, manifest)
    assert store.list("quarantine") == [f"quarantine/{FOLDER}/part-00001.parquet.1"]


def test_a_folder_that_lost_nothing_keeps_its_name(tmp_path: Path):
    store = DirectoryStore(tmp_path)
    assert next_folder(store, FOLDER, ".") == FOLDER, "not made yet"
    commit_files(store, FOLDER, FILES, "vectors")
    assert next_folder(store, FOLDER, ".") == FOLDER
    store.write(f"{FOLDER}/MANIFEST.json", b"{")
    commit_files(store, f"{FOLDER}.2", FILES, "vectors")
    store.delete(f"{FOLDER}.2/part-00000.parquet")
    assert next_folder(store, FOLDER, ".") == f"{FOLDER}.3"
