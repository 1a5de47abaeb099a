"""The geometry of a map: places of vectors, their nearest neighbours, and what neighbours share."""

from collections.abc import Sequence

import numpy as np

BATCH = 512  # rows whose similarities to all others are in memory at once
STEPS = 1e5  # cosines closer than 1 / STEPS count as equal, since float16 and products of matrices round
PERPLEXITY = 30  # about the neighbours whose nearness the map keeps
STEPS_OF_MAP = 500
MOST_AXES = 50  # principal components that the map is made of, as its authors advise


def on_a_map(vectors: np.ndarray) -> np.ndarray:
    """Return places of vectors (n, width) in two dimensions by t-SNE, float64 (n, 2): near ones stay near.

    t-SNE (van der Maaten and Hinton, 2008) begins at the two principal axes, with one seed and one thread, so the same
    vectors give the same places. Vectors without variance, and fewer than four, are placed at the origin.
    """
    rows = len(vectors)
    centred = vectors.astype(np.float64) - (vectors.mean(axis=0, dtype=np.float64) if rows else 0.0)
    if rows < 4 or np.abs(centred).max() < 1e-9:
        return np.zeros((rows, 2))
    from sklearn.decomposition import PCA  # seconds to import, and only maps need it
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    centred = np.pad(centred, ((0, 0), (0, max(0, 2 - centred.shape[1]))))
    axes = min(MOST_AXES, *centred.shape)
    perplexity = min(PERPLEXITY, (rows - 1) / 3)
    with threadpool_limits(1):  # threads add up in any order
        reduced = PCA(axes, svd_solver="full" if rows * axes < 10**5 else "randomized", random_state=0)
        made = TSNE(init="pca", perplexity=perplexity, max_iter=STEPS_OF_MAP, random_state=0)
        placed: np.ndarray = made.fit_transform(reduced.fit_transform(centred)).astype(np.float64)
    return placed


def separation(near: np.ndarray, values: Sequence[str]) -> float | None:
    """Return the share of neighbours with the same value, above that of chance: 0 by chance, 1 if all have it.

    Args:
        near: neighbours by place, (n, count), as `neighbours` returns them.
        values: of each item; items without a value, an empty text, don't count.

    Returns None if fewer than two values, or no neighbours, are there.
    """
    held = np.array([bool(value) for value in values])
    names, codes = np.unique(np.array(values), return_inverse=True)
    counted = np.bincount(codes[held], minlength=len(names)) if held.any() else np.zeros(1)
    both = held[:, None] & held[near] if len(near) else np.zeros((0, 0), dtype=bool)
    if np.count_nonzero(counted) < 2 or not both.any():
        return None
    by_chance = float(((counted / counted.sum()) ** 2).sum())
    same = float((codes[:, None] == codes[near])[both].mean())
    return (same - by_chance) / (1 - by_chance)


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
