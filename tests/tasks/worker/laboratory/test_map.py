"""The map of a release: a stable sample, the item that moved, and its arithmetic against numbers from elsewhere."""

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
from tasks.data.rows import CATALOGUE_KIND, part_name, partition_of
from tasks.worker.laboratory.geometry import kept, neighbours, on_a_map, separation, turned
from tasks.worker.laboratory.map import MOST_ITEMS, map_of, read_sample, sampling
from tests.support.workspace.releases import PARTITIONS, WIDTH, write_release

OF_FOUR = np.repeat(np.arange(4), 30)


def in_four_groups() -> np.ndarray:
    """Four groups of items, as many in each, in 60 dimensions; two axes hold a small share of their variance."""
    numbers = np.random.default_rng(1)
    return np.repeat(numbers.normal(size=(4, 60)), 30, axis=0) + 0.6 * numbers.normal(size=(120, 60))


def test_a_map_keeps_the_neighbours_of_groups_that_two_axes_mix() -> None:
    vectors = in_four_groups()
    places = on_a_map(vectors)
    near = neighbours(places - places.mean(axis=0), 10)  # by angle from the middle
    assert (OF_FOUR[near] == OF_FOUR[:, None]).mean() > 0.95
    within = [np.ptp(places[group == OF_FOUR], axis=0).max() for group in range(4)]
    middles = np.stack([places[group == OF_FOUR].mean(axis=0) for group in range(4)])
    apart = np.linalg.norm(middles[:, None] - middles[None], axis=2)[np.triu_indices(4, 1)]
    assert apart.min() > max(within) / 2
    assert (on_a_map(vectors) == places).all()


@pytest.mark.parametrize("points", [np.zeros((0, 3)), np.ones((1, 3)), np.eye(3), np.ones((50, 3))])
def test_points_that_have_no_map_are_placed_at_the_origin(points: np.ndarray) -> None:
    assert (on_a_map(points) == np.zeros((len(points), 2))).all()


@pytest.mark.parametrize("points", [np.eye(4), np.eye(6)[[0, 0, 0, 1, 2]], np.arange(5.0)[:, None]])
def test_few_points_and_equal_ones_have_places(points: np.ndarray) -> None:
    assert np.isfinite(on_a_map(points)).all()


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([f"g{group}" for group in OF_FOUR], 1.0),
        ([f"r{number % 2}" for number in range(120)], 0.0),
        (["" if group == 3 else f"g{group}" for group in OF_FOUR], 1.0),
        (["same"] * 120, None),
        ([""] * 120, None),
        ([f"x{number}" if number < 1 else "" for number in range(120)], None),
    ],
)
def test_a_feature_separates_by_the_neighbours_that_share_it_above_chance(
    values: list[str], expected: float | None
) -> None:
    assert separation(neighbours(in_four_groups(), 10), values) == (
        None if expected is None else pytest.approx(expected, abs=0.1)
    )


@pytest.mark.parametrize("width", [5, 8, 11])
def test_a_turned_and_mirrored_copy_comes_back(width: int) -> None:
    numbers = np.random.default_rng(2)
    onto = np.pad(numbers.normal(size=(40, 5)), ((0, 0), (0, 3)))  # of 8 dimensions, of which 5 are used
    turn, _ = np.linalg.qr(numbers.normal(size=(width, width)))
    other = np.pad(onto[:, :5], ((0, 0), (0, width - 5))) @ turn
    assert turned(other, onto) == pytest.approx(onto)


def test_neighbours_are_by_cosine_and_equal_ones_by_place() -> None:
    angles = np.radians([0, 10, 30, 30, 180])
    points = np.stack([np.cos(angles), np.sin(angles)], axis=1) * np.array([[1], [5], [1], [2], [1]])
    assert neighbours(points, 3).tolist() == [[1, 2, 3], [0, 2, 3], [3, 1, 0], [2, 1, 0], [2, 3, 1]]


def test_kept_neighbours_are_found_on_both_sides() -> None:
    same = kept(np.array([[1, 2, 3]]), np.array([[3, 4, 1]]))
    assert same[0, :, 0].tolist() == [True, False, True]
    assert same[0, :, 1].tolist() == [True, False, True]


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
