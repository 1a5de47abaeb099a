"""Records are read in one way, and the error names file, field and way out.

Late writers: an attempt that stood still in the middle of its writes while another one took over.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra.store.base import Store
from infra.store.directory import DirectoryStore
from infra.store.lease import CheckedStore, Fence, FencedStore
from infra.store.manifest import MANIFEST, CorruptFolder, Manifest, commit, open_folder, seal
from infra.store.records import NewerRecord, find_record, place, read_record, update_record
from tasks.contracts.references import SpanRef
from tasks.foundation.errors import StoreError, SupersededError

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
    with pytest.raises(CorruptFolder, match=f"{KEY} .*{field}: "):
        find_record(store, KEY, SpanRef, "ingest it again", CorruptFolder)


@pytest.mark.parametrize(
    ("changes", "unknown"),
    [({"flavour": 1}, "the key flavour"), ({"version": 3, "files": "all"}, "version 3")],
)
def test_a_record_of_a_newer_version_is_no_damage_that_something_repairs(
    tmp_path: Path, changes: dict[str, Any], unknown: str
) -> None:
    store = DirectoryStore(tmp_path)
    store.write(KEY, json.dumps(json.loads(Manifest(kind="span", files=(), facts={}).to_json()) | changes).encode())
    with pytest.raises(NewerRecord, match=f"{KEY} has {unknown}, which this Millrace does not know"):
        find_record(store, KEY, Manifest, "delete it", CorruptFolder)


def test_a_missing_record_is_an_error_with_the_way_out(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=f"{KEY} is gone"):
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


PREFIX = "lineages/main/step-00000060"
OLD, NEW = "runs/k/train/attempt-1", "runs/k/train/attempt-2"
FILES = ("model.safetensors", "state.json")


def made(tmp_path: Path, content: str) -> Path:
    """A folder of two files."""
    folder = tmp_path / content
    folder.mkdir()
    for name in FILES:
        (folder / name).write_text(f"{content} {name}")
    return folder


def worker(store: Store, attempt: str) -> FencedStore:
    """The store as the workers of an attempt see it."""
    return FencedStore(store, ("fence",), attempt, sleep=lambda seconds: None)


def admit(store: Store, attempt: str, term: int) -> None:
    store.write("fence", Fence(attempts=(attempt,), term=term).to_json())


def before(
    monkeypatch: pytest.MonkeyPatch, store: Store, methods: list[str], key: str, act: Callable[[], object]
) -> None:
    """Do something once, after all checks, just before the store writes or deletes `key`."""
    originals = {method: getattr(store, method) for method in methods}
    for method, original in originals.items():

        def late(*arguments: Any, original: Callable[..., object] = original) -> object:
            if key in arguments:
                for name, one in originals.items():
                    monkeypatch.setattr(store, name, one)
                act()
            return original(*arguments)

        monkeypatch.setattr(store, method, late)


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_a_worker_that_stands_still_before_a_write_damages_nothing(store, tmp_path, monkeypatch, name):
    admit(store, OLD, 1)
    old, new = made(tmp_path, "old"), made(tmp_path, "new")

    def taken_over() -> None:
        admit(store, NEW, 2)
        commit(worker(store, NEW), PREFIX, new, "checkpoint", {})

    before(monkeypatch, store, ["upload", "create", "write"], f"{PREFIX}/{name}", taken_over)
    with pytest.raises(SupersededError, match="attempt-2"):
        commit(worker(store, OLD), PREFIX, old, "checkpoint", {})
    folder, _ = open_folder(store, PREFIX, "checkpoint")
    assert [(folder / name).read_text() for name in FILES] == [f"new {name}" for name in FILES]


@pytest.mark.parametrize("name", [*FILES, MANIFEST])
def test_a_manifest_that_lands_late_does_not_cover_a_successors_files(store, tmp_path, monkeypatch, name):
    """All that the old attempt uploaded is there; its manifest was on its way."""
    admit(store, NEW, 2)
    old, new = made(tmp_path, "old"), made(tmp_path, "new")
    manifest = commit(store, "elsewhere", old, "checkpoint", {}).to_json()
    for file in FILES:
        store.upload(old / file, f"{PREFIX}/{file}")
    landing = f"{PREFIX}/{MANIFEST}"
    before(monkeypatch, store, ["upload", "create"], f"{PREFIX}/{name}", lambda: store.create(landing, manifest))
    commit(worker(store, NEW), PREFIX, new, "checkpoint", {})
    folder, _ = open_folder(store, PREFIX, "checkpoint")
    assert [(folder / file).read_text() for file in FILES] == [f"new {file}" for file in FILES]


def test_equal_bytes_count_as_placed(store, source):
    place(store, source, "a/b")
    before = store.tags("a")
    place(store, source, "a/b")
    assert store.tags("a") == before


def test_a_delete_that_stood_still_leaves_what_a_successor_wrote(store, monkeypatch):
    store.write("a/1", b"of a dead attempt")
    before(monkeypatch, store, ["discard", "delete"], "a", lambda: store.write("a/1", b"of the successor"))
    CheckedStore(store, lambda key: None).delete("a")
    assert store.read("a/1") == b"of the successor"


def test_one_of_two_that_seal_other_files_at_once_is_told(store, monkeypatch):
    before(monkeypatch, store, ["create", "write"], f"{PREFIX}/{MANIFEST}", lambda: seal(store, PREFIX, (), "kind", {}))
    with pytest.raises(Exception, match="holds something else"):
        seal(store, PREFIX, (), "other kind", {})
    assert open_folder(store, PREFIX, "kind")[1].kind == "kind"
