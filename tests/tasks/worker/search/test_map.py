"""The map of a release: a stable sample, read from a few shards, and the item that moved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.maps import ReleaseMap
from tasks.contracts.runs import Release
from tasks.data.items import CATALOGUE_KIND, part_name, partition_of
from tasks.worker.search.map import map_of
from tasks.worker.search.sample import MOST_ITEMS, read_sample, sampling
from tests.support.workspace.releases import PARTITIONS, WIDTH, write_release

ITEMS, MOVED = 60, 7
GROUPS = 3  # of items that are near each other


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "workspace")


def grouped(seed: int, moved: int | None = None) -> np.ndarray:
    """Items near one of three corners; the same ones, turned, for each seed, but for one that goes to the next."""
    near = np.arange(ITEMS) % GROUPS
    if moved is not None:
        near[moved] = (near[moved] + 1) % GROUPS
    points = np.eye(GROUPS, WIDTH)[near] + 0.1 * np.random.default_rng(1).normal(size=(ITEMS, WIDTH))
    turn, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(WIDTH, WIDTH)))
    return points @ turn


def write_catalogue(store: DirectoryStore, release: Release, folder: Path) -> None:
    """Every item has a category, and all but one a locale."""
    folder.mkdir()
    ids = [f"i{number:04d}" for number in range(release.vectors)]
    for partition in range(PARTITIONS):
        rows = [number for number, item_id in enumerate(ids) if partition_of(item_id, PARTITIONS) == partition]
        columns = {
            "item_id": [ids[row] for row in rows],
            "category": [f"c{row % GROUPS}" for row in rows],
            "locale": [None if row == MOVED else "de" for row in rows],
        }
        pq.write_table(pa.table(columns), folder / part_name(partition))
    commit(store, release.catalogue.prefix, folder, CATALOGUE_KIND, {})


def made(store: DirectoryStore, release: Release, before: Release | None = None) -> ReleaseMap:
    return map_of(store, release, release, before, ())


def test_two_releases_sample_the_same_items_from_few_shards(store: DirectoryStore) -> None:
    one, other = write_release(store, 1, items=ITEMS), write_release(store, 2, items=ITEMS + 30)
    for every in (1, 2, 8):
        sampled = [read_sample(store, release, every) for release in (one, other)]
        wanted = [f"i{number:04d}" for number in range(ITEMS + 30)]
        wanted = [item_id for item_id in wanted if partition_of(item_id, every) == 0]
        assert sampled[1].ids == wanted
        assert sampled[0].ids == [item_id for item_id in wanted if int(item_id[1:]) < ITEMS]
    for number in range(1, PARTITIONS):
        store.delete(f"{one.vectors_prefix}/{part_name(number)}")
    assert read_sample(store, one, 8).ids == sampled[0].ids  # the others are not read


@pytest.mark.parametrize("vectors", [0, 1, MOST_ITEMS, MOST_ITEMS + 1, 1_000_000])
def test_a_sample_is_bounded_and_no_smaller_than_needed(vectors: int) -> None:
    every = sampling(vectors)
    assert vectors / every <= MOST_ITEMS
    assert every == 1 or vectors / every > MOST_ITEMS / 2


def test_the_item_that_went_to_another_group_moved_most(store: DirectoryStore) -> None:
    before = write_release(store, 1, items=ITEMS, vectors=grouped(1))
    found = made(store, write_release(store, 2, items=ITEMS, vectors=grouped(2, MOVED)), before).moves
    assert found is not None
    assert (found.shared, found.neighbours) == (ITEMS, 10)
    assert found.kept is not None
    assert found.kept > 0.9
    first = found.movers[0]
    assert (first.item_id, first.kept, first.same_content) == (f"i{MOVED:04d}", 0, True)
    lengths = [np.hypot(one.x - one.x_before, one.y - one.y_before) for one in found.movers]
    assert lengths[0] > 2 * max(lengths[1:], default=0.0)
    lost, new = ({int(text[6:10]) % GROUPS for text in texts} for texts in (first.before, first.after))
    assert (lost, new) == ({MOVED % GROUPS}, {(MOVED + 1) % GROUPS})


def test_a_turn_of_the_whole_space_moves_nothing(store: DirectoryStore) -> None:
    before = write_release(store, 1, items=ITEMS, vectors=grouped(1))
    found = made(store, write_release(store, 2, items=ITEMS, vectors=grouped(2)), before).moves
    assert found is not None
    assert (found.kept, found.movers) == (1.0, ())


def test_the_same_release_gives_the_same_bytes(store: DirectoryStore) -> None:
    before, release = write_release(store, 1), write_release(store, 2)
    assert made(store, release, before).to_json() == made(store, release, before).to_json()


def test_each_item_has_its_features(store: DirectoryStore, tmp_path: Path) -> None:
    release = write_release(store, 1, items=ITEMS, vectors=grouped(1))
    write_catalogue(store, release, tmp_path / "catalogue")
    found = map_of(store, release, release, None, ("category", "locale", "brand"))
    assert len(found.items) == ITEMS
    values = {item.item_id: item.values for item in found.items}
    assert values["i0004"] == ("c1", "de", "")
    assert values[f"i{MOVED:04d}"] == ("c1", "", "")
    of_category, of_locale, of_brand = found.separation
    assert of_category is not None
    assert of_category > 0.9
    assert (of_locale, of_brand) == (None, None)


def test_items_that_the_current_release_no_longer_has_are_left_out(store: DirectoryStore) -> None:
    old, current = write_release(store, 1, items=30), write_release(store, 2, items=20)
    found = map_of(store, old, current, None, ())
    assert [item.item_id for item in found.items] == [f"i{number:04d}" for number in range(20)]


def test_one_item_in_both_has_no_neighbours(store: DirectoryStore) -> None:
    before = write_release(store, 1, items=1)
    found = made(store, write_release(store, 2), before).moves
    assert found is not None
    assert (found.shared, found.kept, found.movers) == (1, None, ())
