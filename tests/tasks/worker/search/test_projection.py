"""Principal axes, turns and neighbours against numbers known from elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from tasks.worker.search.projection import kept, neighbours, principal_plane, turned


def test_the_axes_of_known_points() -> None:
    corners = np.array([[4.0, 0, 0], [-4, 0, 0], [0, 2, 0], [0, -2, 0]]) + 7  # variances 16 : 4 : 0
    plane = principal_plane(corners)
    assert plane.explained == pytest.approx((0.8, 0.2))
    assert plane.place(corners) == pytest.approx(np.array([[4, 0], [-4, 0], [0, 2], [0, -2]]))  # signs are fixed


def test_the_axes_are_those_of_a_singular_value_decomposition() -> None:
    points = np.random.default_rng(1).normal(size=(200, 12)) * np.arange(1, 13)
    plane = principal_plane(points)
    left, strengths, _ = np.linalg.svd(points - points.mean(axis=0), full_matrices=False)
    assert np.abs(plane.place(points)) == pytest.approx(np.abs(left[:, :2] * strengths[:2]))
    assert plane.explained == pytest.approx(tuple(strengths[:2] ** 2 / (strengths**2).sum()))


@pytest.mark.parametrize("points", [np.zeros((0, 3)), np.ones((1, 3)), np.ones((5, 1)), np.ones((5, 3))])
def test_points_without_variance_are_placed_at_the_origin(points: np.ndarray) -> None:
    plane = principal_plane(points)
    assert plane.explained == (0.0, 0.0)
    assert plane.place(points) == pytest.approx(np.zeros((len(points), 2)))


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
