"""Maps, turns and neighbours against numbers known from elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.worker.search.projection import kept, neighbours, on_a_map, separation, turned

GROUPS = np.repeat(np.arange(4), 30)


def grouped() -> np.ndarray:
    """Four groups of items, as many in each, in 60 dimensions; two axes hold a small share of their variance."""
    numbers = np.random.default_rng(1)
    return np.repeat(numbers.normal(size=(4, 60)), 30, axis=0) + 0.6 * numbers.normal(size=(120, 60))


def test_a_map_keeps_the_neighbours_of_groups_that_two_axes_mix() -> None:
    vectors = grouped()
    places = on_a_map(vectors)
    near = neighbours(places - places.mean(axis=0), 10)  # by angle from the middle
    assert (GROUPS[near] == GROUPS[:, None]).mean() > 0.95
    within = [np.ptp(places[group == GROUPS], axis=0).max() for group in range(4)]
    middles = np.stack([places[group == GROUPS].mean(axis=0) for group in range(4)])
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
        ([f"g{group}" for group in GROUPS], 1.0),
        ([f"r{number % 2}" for number in range(120)], 0.0),
        (["" if group == 3 else f"g{group}" for group in GROUPS], 1.0),
        (["same"] * 120, None),
        ([""] * 120, None),
        ([f"x{number}" if number < 1 else "" for number in range(120)], None),
    ],
)
def test_a_feature_separates_by_the_neighbours_that_share_it_above_chance(
    values: list[str], expected: float | None
) -> None:
    assert separation(neighbours(grouped(), 10), values) == (
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
