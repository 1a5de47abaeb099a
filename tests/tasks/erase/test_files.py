"""Facts of vectors and catalogues after an erasure: the newest file that names the item tells if one went."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.base import sha256_of
from infra.store.directory import DirectoryStore
from infra.store.manifest import FileEntry, Manifest, read_manifest, seal
from tasks.contracts.workspace import CATALOGUE, VECTORS
from tasks.data.layers import layers_of
from tasks.data.rows import CONTENT, DELETED, ITEM_ID, VECTOR, deleted_name, delta_name, part_name
from tasks.erase.change import plan_changes
from tasks.erase.files import new_manifest, without_rows
from tasks.erase.survey import Changing, Survey
from tasks.erase.wanted import Wanted


def written(path: Path, **items: float | None) -> FileEntry:
    """A file with an item a row; None removes it."""
    contents = [None if each is None else "1" for each in items.values()]
    vectors = pa.array([None if each is None else [each] for each in items.values()], pa.list_(pa.float32()))
    pq.write_table(pa.table({ITEM_ID: list(items), CONTENT: pa.array(contents, pa.string()), VECTOR: vectors}), path)
    return FileEntry(name=path.name, bytes=path.stat().st_size, sha256=sha256_of(path))


def hashed(*ids: str) -> str:
    return hashlib.sha256("".join(f"{each}\n" for each in ids).encode()).hexdigest()


@pytest.mark.parametrize(
    ("item", "vectors", "left"), [("a", 2, "bd"), ("b", 2, "ad"), ("c", 3, "abd"), ("d", 2, "ab"), ("z", 3, "abd")]
)
def test_an_item_is_counted_once_and_a_removed_one_not_at_all(tmp_path: Path, item: str, vectors: int, left: str):
    layers = [
        written(tmp_path / part_name(0), a=1.0, b=1.0, c=1.0),
        written(tmp_path / delta_name(0, 1), b=2.0, c=None),
        written(tmp_path / delta_name(0, 2), d=1.0, z=None),
    ]
    facts: dict[str, Any] = {
        "catalogue": {"prefix": "catalogue/x", "items": 3, "sha256": "0" * 64, "partitions": 1},
        "vectors": 3,
        "bad": 0,
        "shards": [[3, 0, hashed("a", "b", "d")]],
        "ids_sha256": "",
    }
    manifest = Manifest(kind="vectors", files=tuple(layers), facts=facts)
    wanted = Wanted(ITEM_ID, item)
    changed = {
        each.sha256: without_rows(tmp_path / each.name, tmp_path / "new", wanted, None)
        for each in layers
        if item in pq.read_table(tmp_path / each.name)[ITEM_ID].to_pylist()
    }
    gone = {"catalogue/x": {"items": vectors}}
    made = new_manifest(VECTORS, manifest, changed, {}, gone, wanted, lambda entry: tmp_path / entry.name)
    assert made.facts["shards"] == [[vectors, 0, hashed(*left)]]
    assert (made.facts["vectors"], made.facts["catalogue"]["items"]) == (vectors, vectors)
    assert [entry.sha256 for entry in made.files] == [
        changed[each.sha256].sha256 if each.sha256 in changed else each.sha256 for each in layers
    ]


def items_of(path: Path, **deleted: bool | None) -> FileEntry:
    """A file of a catalogue: an item a row, true if it is deleted, None if its partition no longer has it."""
    states = pa.array(list(deleted.values()), pa.bool_())
    columns = {ITEM_ID: list(deleted), "text": [f"text of {item}" for item in deleted]}
    pq.write_table(pa.table({**columns, DELETED: states} if path.name != part_name(0) else columns), path)
    return FileEntry(name=path.name, bytes=path.stat().st_size, sha256=sha256_of(path))


@pytest.mark.parametrize(
    ("item", "live", "deleted"),
    [("a", 2, 2), ("b", 2, 2), ("c", 3, 1), ("d", 3, 1), ("e", 2, 2), ("z", 3, 2)],
    ids=["alone", "in a delta too", "live below, deleted above", "deleted", "deleted below, back above", "gone"],
)
def test_an_item_of_a_catalogue_is_counted_by_its_newest_file(tmp_path: Path, item: str, live: int, deleted: int):
    files = [
        items_of(tmp_path / part_name(0), a=False, b=False, c=False, z=False),
        items_of(tmp_path / deleted_name(0), d=True, e=True),
        items_of(tmp_path / delta_name(0, 1, "1" * 64), b=False, c=True, e=True),
        items_of(tmp_path / delta_name(0, 2, "2" * 64), e=False, z=None),
    ]
    manifest = Manifest(kind="catalogue", files=tuple(files), facts={"items": 3, "deleted": 2, "partitions": 1})
    wanted = Wanted(ITEM_ID, item)
    changed = {
        each.sha256: without_rows(tmp_path / each.name, tmp_path / "new", wanted, None)
        for each in files
        if item in pq.read_table(tmp_path / each.name)[ITEM_ID].to_pylist()
    }
    made = new_manifest(CATALOGUE, manifest, changed, {}, {}, wanted, lambda entry: tmp_path / entry.name)
    assert (made.facts["items"], made.facts["deleted"]) == (live, deleted)


def test_a_file_below_a_delta_stays_without_rows(tmp_path: Path):
    """Else the manifest would name a delta over no file, which readers take for damage."""
    store, prefix = DirectoryStore(tmp_path / "workspace"), "catalogue/x"
    folder = store.path(prefix)
    folder.mkdir(parents=True)
    files = items_of(folder / part_name(0), a=False), items_of(folder / delta_name(0, 1, "1" * 64), b=False)
    facts = {"items": 2, "deleted": 0, "partitions": 1}
    seal(store, prefix, files, "catalogue", facts, version=2)
    changing = [Changing(f"{prefix}/{part_name(0)}", CATALOGUE, None, 1)]
    survey = Survey(parquet=changing, manifests={prefix: (CATALOGUE, read_manifest(store, prefix))})
    work = plan_changes(store, survey, Wanted(ITEM_ID, "a"), tmp_path, None, ())
    after = work.manifests[prefix].after
    assert [len(layers) for layers in layers_of(after).values()] == [2]
    assert after.facts["items"] == 1
