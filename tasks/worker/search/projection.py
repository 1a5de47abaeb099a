"""The arithmetic of a map: principal components, two models' vectors turned onto each other, neighbours that changed.

It gives the same numbers for the same vectors: signs are fixed, and equal distances are ordered by place.
"""

from typing import NamedTuple

import numpy as np

BATCH = 512  # rows whose similarities to all others are in memory at once
STEPS = 1e5  # cosines closer than 1 / STEPS count as equal, since float16 and products of matrices round


class Plane(NamedTuple):
    """Two principal axes: `mean` float64 (width,), `axes` float64 (width, 2), `explained` shares of the variance."""

    mean: np.ndarray
    axes: np.ndarray
    explained: tuple[float, float]

    def place(self, vectors: np.ndarray) -> np.ndarray:
        """Return the places of vectors (n, width) on the plane, float64 (n, 2)."""
        placed: np.ndarray = (vectors.astype(np.float64) - self.mean) @ self.axes
        return placed


def principal_plane(vectors: np.ndarray) -> Plane:
    """Fit the two principal axes of vectors (n, width); of each axis the largest entry is positive."""
    rows, width = vectors.shape
    mean = vectors.mean(axis=0, dtype=np.float64) if rows else np.zeros(width)
    centred = vectors.astype(np.float64) - mean
    variances, axes = np.linalg.eigh(centred.T @ centred)
    order = np.argsort(-variances, kind="stable")[:2]
    found = np.zeros((width, 2))
    found[:, : len(order)] = axes[:, order]
    largest = np.abs(found).argmax(axis=0)
    found *= np.where(found[largest, [0, 1]] < 0, -1.0, 1.0)
    whole = float(variances.clip(0).sum())
    shares = [float(variances[which].clip(0)) / whole if whole > 0 else 0.0 for which in order] + [0.0]
    return Plane(mean, found, (shares[0], shares[1]))


def turned(vectors: np.ndarray, onto: np.ndarray) -> np.ndarray:
    """Turn and mirror vectors (n, width before) so that they lie as near as possible to `onto` (n, width).

    It is the orthogonal Procrustes solution, which keeps all angles: two models agree only up to such a turn. The
    narrower ones get zeros as more dimensions.
    """
    width = max(vectors.shape[1], onto.shape[1])
    left, right = (np.pad(each.astype(np.float64), ((0, 0), (0, width - each.shape[1]))) for each in (vectors, onto))
    one, _, other = np.linalg.svd(left.T @ right)
    result: np.ndarray = (left @ (one @ other))[:, : onto.shape[1]]
    return result


def neighbours(vectors: np.ndarray, count: int) -> np.ndarray:
    """Return the places of the nearest others by cosine, int64 (n, count), nearest first; at equal ones by place."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = (vectors / np.where(lengths > 0, lengths, 1.0)).astype(np.float32)
    rows = len(unit)
    found = np.zeros((rows, count), dtype=np.int64)
    for start in range(0, rows, BATCH):
        here = np.arange(start, min(start + BATCH, rows))
        keys = np.rint(unit[here] @ unit.T * -STEPS).astype(np.int64) * rows + np.arange(rows)
        keys[np.arange(len(here)), here] = np.iinfo(np.int64).max  # itself
        nearest = np.sort(np.partition(keys, count - 1, axis=1)[:, :count], axis=1) if count else keys[:, :0]
        found[here] = nearest % rows
    return found


def kept(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return bool (n, count, 2): True for a neighbour in `before`, and in `after`, that the other one has as well."""
    same = before[:, :, None] == after[:, None, :]
    return np.stack([same.any(axis=2), same.any(axis=1)], axis=2)
