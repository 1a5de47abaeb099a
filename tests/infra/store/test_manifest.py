import math

import pytest

from infra.store.base import Conflict, Store, sha256_of
from infra.store.manifest import (
    MANIFEST,
    CorruptFolder,
    FileEntry,
    MissingFolder,
    commit,
    open_folder,
    quarantine,
    read_fact,
    read_manifest,
    seal,
)

PREFIX = "vectors/v1/2021-Q1"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "deep").mkdir(parents=True)
    (folder / "part-0.parquet").write_bytes(b"some rows")
    (folder / "deep" / "part-1.parquet").write_bytes(b"")
    return folder


def committed(store, source, **facts):
    return commit(store, PREFIX, source, "vectors", {"rows": 9, **facts})


def uploads(store: Store, monkeypatch) -> list[str]:
    """The keys of all uploads and writes from now on."""
    keys: list[str] = []
    upload, create = store.upload, store.create
    monkeypatch.setattr(store, "upload", lambda path, key, *rest: (keys.append(key), upload(path, key, *rest)))
    monkeypatch.setattr(store, "create", lambda key, data: (keys.append(key), create(key, data)))
    return keys


def test_a_committed_folder_opens_with_its_files_and_facts(store, source):
    manifest = committed(store, source)
    folder, found = open_folder(store, PREFIX, "vectors")
    assert found == manifest
    assert found.facts == {"rows": 9}
    assert [(entry.name, entry.bytes) for entry in found.files] == [("deep/part-1.parquet", 0), ("part-0.parquet", 9)]
    assert (folder / "part-0.parquet").read_bytes() == b"some rows"
    assert (folder / "deep" / "part-1.parquet").read_bytes() == b""


def test_the_manifest_is_written_last(store, source, monkeypatch):
    keys = uploads(store, monkeypatch)
    committed(store, source)
    assert keys == [f"{PREFIX}/deep/part-1.parquet", f"{PREFIX}/part-0.parquet", f"{PREFIX}/{MANIFEST}"]


def test_a_manifest_with_any_facts_reads_back_as_it_was_written(store, source):
    manifest = committed(store, source, share=0.1, bad=math.nan, names=("a", "ü"), nothing=None)
    assert read_manifest(store, PREFIX).sha256 == manifest.sha256


def test_the_checksum_of_a_manifest_changes_with_any_file(store, source):
    before = committed(store, source).sha256
    (source / "part-0.parquet").write_bytes(b"some r0ws")
    assert commit(store, "elsewhere", source, "vectors", {"rows": 9}).sha256 != before


def test_a_folder_without_manifest_does_not_exist(store, source):
    store.upload(source / "part-0.parquet", f"{PREFIX}/part-0.parquet")
    for read in (lambda: open_folder(store, PREFIX, "vectors"), lambda: read_manifest(store, PREFIX)):
        with pytest.raises(MissingFolder, match=f"{PREFIX} has no {MANIFEST}"):
            read()


def test_an_interrupted_commit_leaves_nothing_to_read_and_can_be_repeated(store, source, monkeypatch):
    upload = store.upload

    def break_off(path, key, *rest):
        if key.endswith("part-0.parquet"):
            raise OSError("the network is gone")
        upload(path, key, *rest)

    monkeypatch.setattr(store, "upload", break_off)
    with pytest.raises(OSError, match="the network is gone"):
        committed(store, source)
    with pytest.raises(MissingFolder):
        read_manifest(store, PREFIX)
    monkeypatch.undo()
    committed(store, source)
    assert len(open_folder(store, PREFIX, "vectors")[1].files) == 2


def flip_a_bit(store: Store, key: str) -> None:
    content = bytearray(store.read(key))
    content[3] ^= 1
    store.write(key, bytes(content))


@pytest.mark.parametrize(
    ("damage", "complaint"),
    [
        (flip_a_bit, "part-0.parquet does not match its checksum"),
        (lambda store, key: store.write(key, b"some"), "part-0.parquet does not match its checksum"),
        (lambda store, key: store.write(key, b"some rows and more"), "part-0.parquet does not match its checksum"),
        (lambda store, key: store.delete(key), "part-0.parquet is gone"),
    ],
    ids=["one bit", "cut off", "longer", "gone"],
)
def test_a_damaged_file_is_named(store, source, damage, complaint):
    committed(store, source)
    open_folder(store, PREFIX, "vectors")  # what was sound once is checked again
    damage(store, f"{PREFIX}/part-0.parquet")
    with pytest.raises(CorruptFolder, match=complaint):
        open_folder(store, PREFIX, "vectors")


def test_a_file_that_the_manifest_does_not_name_is_ignored(store, source):
    committed(store, source)
    store.write(f"{PREFIX}/notes.txt", b"")
    open_folder(store, PREFIX, "vectors")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"version": 0, "kind": "vectors", "files": [], "facts": {}}',
    ],
)
def test_a_manifest_that_cannot_be_read_is_named(store, content):
    store.write(f"{PREFIX}/{MANIFEST}", content)
    with pytest.raises(CorruptFolder, match=f"{PREFIX}/{MANIFEST} is"):
        read_manifest(store, PREFIX)


def test_a_folder_of_another_kind_is_refused(store, source):
    committed(store, source)
    with pytest.raises(CorruptFolder, match=r"vectors.*model"):
        open_folder(store, PREFIX, "model")


def test_committing_the_same_files_again_writes_nothing(store, source, monkeypatch):
    manifest = committed(store, source)
    keys = uploads(store, monkeypatch)
    assert committed(store, source) == manifest
    assert keys == []


def test_committing_other_files_or_facts_is_a_conflict_and_changes_nothing(store, source):
    manifest = committed(store, source)
    (source / "part-0.parquet").write_bytes(b"other rows")
    with pytest.raises(Conflict, match="nothing was written"):
        committed(store, source)
    (source / "part-0.parquet").write_bytes(b"some rows")
    with pytest.raises(Conflict):
        committed(store, source, width=3)
    assert open_folder(store, PREFIX, "vectors")[1] == manifest


@pytest.fixture
def entries(store, source) -> tuple[FileEntry, ...]:
    path = source / "part-0.parquet"
    store.upload(path, f"{PREFIX}/part-0.parquet")
    return (FileEntry(name=path.name, bytes=path.stat().st_size, sha256=sha256_of(path)),)


def test_a_sealed_folder_opens(store, entries):
    manifest = seal(store, PREFIX, entries, "vectors", {"rows": 9})
    folder, found = open_folder(store, PREFIX, "vectors")
    assert found == manifest
    assert (folder / "part-0.parquet").read_bytes() == b"some rows"


def test_sealing_the_same_files_again_writes_nothing(store, entries, monkeypatch):
    seal(store, PREFIX, entries, "vectors", {"rows": 9})
    keys = uploads(store, monkeypatch)
    seal(store, PREFIX, entries, "vectors", {"rows": 9})
    assert keys == []


def test_sealing_other_files_is_a_conflict(store, entries):
    manifest = seal(store, PREFIX, entries, "vectors", {"rows": 9})
    with pytest.raises(Conflict):
        seal(store, PREFIX, (), "vectors", {"rows": 0})
    assert read_manifest(store, PREFIX) == manifest


def test_a_quarantined_folder_is_kept_out_of_sight_and_its_place_can_be_filled_again(store, source):
    committed(store, source)
    first = quarantine(store, PREFIX)
    assert store.list(PREFIX) == []
    assert store.read(f"{first}/part-0.parquet") == b"some rows"
    with pytest.raises(MissingFolder):
        open_folder(store, PREFIX, "vectors")
    committed(store, source, attempt=2)
    second = quarantine(store, PREFIX)
    assert first != second
    assert read_manifest(store, first).facts != read_manifest(store, second).facts


def test_a_single_file_can_be_quarantined(store):
    places = []
    for content in (b"first", b"second"):
        store.write("runs/1/train/result.json", content)
        places.append(quarantine(store, "runs/1/train/result.json"))
    assert not store.exists("runs/1/train/result.json")
    assert [store.read(place) for place in places] == [b"first", b"second"]


@pytest.mark.parametrize(("name", "of"), [("columns", list[str]), ("rows", str), ("parts", list[str])])
def test_a_fact_that_is_gone_or_something_else_is_named(store, source, name, of):
    committed(store, source, parts=["a", True])
    assert read_fact(store, PREFIX, "rows", int) == 9
    with pytest.raises(CorruptFolder, match=rf"{MANIFEST}: facts\.{name}:"):
        read_fact(store, PREFIX, name, of)
