"""Files of a released workspace: damaged in one byte, cut in half, deleted. What readers say, and how work goes on.

Readers compare the bytes that they load, so no damage is served. A refresh or a run ends by itself, or names the one
file that a person must bring back. `make proofs` takes every kind of file; here are those that releases name on.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flows.cli import running
from flows.cli.flow_runs import FlowDone
from flows.cli.terminal.options import RunOptions
from infra.store.base import Store, sha256_of
from infra.store.directory import DirectoryStore
from infra.store.manifest import open_files, read_manifest
from tasks.contracts.runs import Release
from tasks.contracts.workspace import TABLE, kind_of
from tasks.data.rows import CATALOGUE_KIND, VECTORS_KIND, is_deleted_name
from tasks.foundation.errors import ConfigError, StageError, StoreError
from tasks.planning.next_run import plan_run
from tasks.runs import releases
from tasks.runs.catalogues import plan_refresh
from tasks.runs.plan import NothingToDo
from tasks.runs.rollback import rollback
from tasks.runs.snapshot import expect_whole
from tasks.worker.search.consumer import open_released
from tasks.worker.search.index import Index
from tests.support.fakes.stages import carry_out
from tests.support.workspace import served
from tests.support.workspace.served import copy_of, in_use, make_served, served_config, take_in, take_in_feed

NEXT = "2021-Q3"  # ingested, not trained
LOST = "run 2021-Q2 first"  # its checkpoint is gone, so it is trained again from the one before
KNOWN = {f"i{number:03d}" for number in range(served.ITEMS)} | {"new-1", "new-2"}


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes() or b"0")  # a lock's file is empty
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "flipped": flipped,
    "cut": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "gone": Path.unlink,
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> DirectoryStore:
    store = make_served(tmp_path_factory.mktemp("whole"))
    take_in(store, NEXT)
    return store


@pytest.fixture
def store(whole: DirectoryStore, tmp_path: Path) -> DirectoryStore:
    return copy_of(whole, tmp_path)


def current(store: Store) -> Release:
    release = releases.current(store)
    assert release is not None
    return release


def entry_of(store: Store, prefix: str, named: bool) -> str:
    """The key of a file that a folder names in another one, or of one of its own."""
    entries = [each for each in read_manifest(store, prefix).files if not is_deleted_name(each.name)]
    return next(each.key(prefix) for each in entries if (each.at is not None) == named)


PLACES: dict[str, Callable[[Store, Release], str]] = {
    "named shard": lambda store, of: entry_of(store, of.vectors_prefix, True),
    "own shard": lambda store, of: entry_of(store, of.vectors_prefix, False),
    "named partition": lambda store, of: entry_of(store, of.catalogue.prefix, True),
    "own partition": lambda store, of: entry_of(store, of.catalogue.prefix, False),
    "weights": lambda store, of: f"{of.model_prefix}/model.safetensors",
    "settings of a model": lambda store, of: f"{of.model_prefix}/modules.json",
    "manifest of the vectors": lambda store, of: f"{of.vectors_prefix}/MANIFEST.json",
    "manifest of the catalogue": lambda store, of: f"{of.catalogue.prefix}/MANIFEST.json",
    "manifest of the model": lambda store, of: f"{of.model_prefix}/MANIFEST.json",
}
FEW = [
    ("named shard", "flipped"),
    ("named partition", "flipped"),
    ("weights", "flipped"),
    ("manifest of the catalogue", "gone"),
]
MORE = [each for each in itertools.product(PLACES, DAMAGES) if each not in FEW]


def served_items(store: Store) -> set[str]:
    """The ids of the current release, all of whose files are sound."""
    release = current(store)
    expect_whole(store, release)
    open_files(store, release.catalogue.prefix, CATALOGUE_KIND)
    index = Index(store, release.vectors_prefix, release.model.version, sha256=release.vectors_sha256)
    return {each for _, table in index.tables(["item_id"]) for each in table["item_id"].to_pylist()}


def refresh_command(store: Store, monkeypatch: pytest.MonkeyPatch, verify: bool) -> running.RefreshOutput:
    """The command, with its stages in this process."""
    monkeypatch.setattr(running, "begin_loading", lambda store, plan: None)
    monkeypatch.setattr(running, "run_flow", lambda *_: FlowDone(served.refresh(store), "", ""))
    settings = served_config().model_dump(mode="json", by_alias=True)
    monkeypatch.setattr(RunOptions, "config", lambda self: served_config().model_validate(settings))
    return running.refresh(RunOptions(store, None, ()), verify)


@pytest.mark.parametrize(("place", "damage"), [*FEW, *(pytest.param(*each, marks=pytest.mark.proof) for each in MORE)])
def test_damage_of_a_release_is_refused_and_made_again(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, place: str, damage: str
):
    key = PLACES[place](store, current(store))
    DAMAGES[damage](store.path(key))
    of_catalogue = key.startswith("catalogue/")
    if not of_catalogue:
        with pytest.raises(StoreError, match=r"release 4 .*--verify") as caught:
            open_released(store, current(store).ref)
        assert key in str(caught.value) or key.rpartition("/")[0] in str(caught.value)
    other = copy_of(store, tmp_path / "other")
    with in_use(other):
        take_in_feed(other, 3, "new-3")
        served.refresh(other)
    assert served_items(other) == KNOWN | {"new-3"}, "an hourly refresh with a new item"
    with in_use(store):
        made = refresh_command(store, monkeypatch, verify=True)
    assert made.state == "Released"
    assert served_items(store) == KNOWN, "the same items, by a person's command"
    assert made.release is not None
    assert made.release.model == releases.read(store, 4).model
    with pytest.raises(NothingToDo):
        plan_refresh(store, served_config())


@pytest.mark.parametrize("place", ["own shard", "weights"])
def test_nobody_goes_back_to_a_damaged_release(store: DirectoryStore, place: str):
    key = PLACES[place](store, releases.read(store, 2))
    flipped(store.path(key))
    with pytest.raises(ConfigError, match=rf"release 2 .*{key}"):
        rollback(store)
    assert current(store).number == 4
    assert rollback(store, 3).number == 3


def found_by_id(store: Store) -> dict[str, tuple[str, np.ndarray]]:
    """The text and the vector of each item of the current release."""
    release, found = current(store), dict[str, tuple[str, np.ndarray]]()
    for path in open_files(store, release.vectors_prefix, VECTORS_KIND):
        for row in pq.read_table(path).to_pylist():
            found[row["item_id"]] = (row["text"], np.array(row["vector"]))  # a newer file comes later
    return {item_id: row for item_id, row in found.items() if row[0] is not None}


def foreign(store: DirectoryStore, prefix: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Change the files of a folder together with its manifest, as somebody can who may write there."""
    manifest = read_manifest(store, prefix)
    entries = []
    for entry in manifest.files:
        path = store.path(entry.key(prefix))
        if entry.at is None and not is_deleted_name(entry.name):
            pq.write_table(change(pq.read_table(path)), path)
        entries.append(entry.model_copy(update={"bytes": path.stat().st_size, "sha256": sha256_of(path)}))
    store.write(f"{prefix}/MANIFEST.json", manifest.model_copy(update={"files": tuple(entries)}).to_json())


def other_vectors(shard: pa.Table) -> pa.Table:
    return shard.set_column(
        shard.column_names.index("vector"), "vector", shard["vector"].take(pa.array(range(len(shard))[::-1]))
    )


def other_texts(items: pa.Table) -> pa.Table:
    return items.set_column(items.column_names.index("text"), "text", pa.array(["buy this"] * len(items)))


@pytest.mark.parametrize("what", ["vectors", "catalogue"])
def test_a_folder_that_was_changed_with_its_manifest_gives_nothing_to_the_next_release(
    store: DirectoryStore, what: str
):
    """Only releases/ vouches for a folder; who may write elsewhere must get nothing of his served."""
    expected, release = found_by_id(store), current(store)
    if what == "vectors":
        foreign(store, release.vectors_prefix, other_vectors)
    else:
        foreign(store, release.catalogue.prefix, other_texts)
    with in_use(store):
        take_in_feed(store, 3, "new-3")
        served.refresh(store)
    now = found_by_id(store)
    assert now.keys() == expected.keys() | {"new-3"}
    for item_id, (text, vector) in expected.items():
        assert now[item_id][0] == text
        np.testing.assert_allclose(now[item_id][1], vector, atol=1e-5)


def keys_of_kinds(store: Store) -> dict[str, str]:
    """The newest file of each kind in the workspace, and the manifest of each folder."""
    found = {}
    for key in sorted(store.list("")):
        kind, _ = kind_of(key)
        found[f"{kind.name}{', manifest' if key.endswith('/MANIFEST.json') else ''}"] = key
    return found


@pytest.mark.proof
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", sorted({f"{kind.name}{more}" for kind in TABLE for more in ("", ", manifest")}))
def test_after_damage_of_any_file_work_ends_or_names_what_a_person_must_bring_back(
    whole: DirectoryStore, tmp_path: Path, kind: str, damage: str
):
    key = keys_of_kinds(whole).get(kind)
    if key is None:
        pytest.skip("the workspace has no such file")
    named = (key, key.rpartition("/")[0], *([f"'{NEXT}'"] if kind == "span, manifest" else []))
    for number, work in enumerate((refresh_with_a_new_item, run_the_next_span)):
        store = copy_of(whole, tmp_path / str(number))
        DAMAGES[damage](store.path(key))
        with in_use(store):
            try:
                expected, refused = work(store), None
            except StageError as error:
                expected, refused = set[str](), str(error)
        if refused is None or LOST in refused:
            assert served_items(store) >= expected
        else:
            assert any(each in refused for each in named), f"{work.__name__} names another file: {refused}"
            assert any(word in refused for word in ("estore", "again", "move", "millrace")), refused


def refresh_with_a_new_item(store: Store) -> set[str]:
    take_in_feed(store, 3, "new-3")
    served.refresh(store)
    return KNOWN | {"new-3"}


def run_the_next_span(store: Store) -> set[str]:
    carry_out(plan_run(store, served_config(), NEXT))
    return KNOWN
