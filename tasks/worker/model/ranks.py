"""The rank and the loss of each query's own item among a corpus, by cosine, in chunks of bounded memory.

All cores share each chunk: NumPy or the device computes the products in parallel, and a thread pool compares and sums
the scores, for which NumPy uses one thread.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from tasks.worker.devices.ahead import own_threads
from tasks.worker.model.relevant import Relevant

HOST = torch.device("cpu")
CHUNK_QUERIES = 512
CHUNK_SCORES = 2**24  # per chunk, 64 MiB; for a larger corpus a chunk has fewer queries


class Ranked(NamedTuple):
    """Results for each query's own item: `ranks` int64 (queries,) from 1; `losses` float32 (queries,) in nats."""

    ranks: np.ndarray
    losses: np.ndarray | None


def rank_targets(
    queries: np.ndarray,
    corpus: np.ndarray,
    targets: np.ndarray,
    share: tuple[int, int] = (0, 1),
    relevant: Relevant | None = None,
    scale: float | None = None,
    device: torch.device = HOST,
) -> Ranked:
    """Rank each query's own item by cosine among all items of the corpus that are not relevant too.

    An item with an equal score ranks before the own item, so that a collapsed model scores badly, not perfectly. So
    does an item whose score is NaN, and every item if the own score is NaN.

    Args:
        queries: float32 (queries, width), unit vectors.
        corpus: float32 (items, width), unit vectors.
        targets: int64 (queries,), row of the own item in the corpus.
        share: this worker's index and the number of workers: each ranks some of the queries and leaves 0 for the
            others. The chunks, and so the numbers, don't depend on the number of workers or threads.
        relevant: other relevant items, which are ignored; None: there are none.
        scale: inverse temperature of the softmax over the same items, whose cross entropy is the loss; None: no losses.
        device: that multiplies the vectors.
    """
    ranks = np.zeros(len(queries), dtype=np.int64)
    losses = None if scale is None else np.zeros(len(queries), dtype=np.float32)
    rows = max(1, min(CHUNK_QUERIES, CHUNK_SCORES // max(1, len(corpus))))
    index, world = share

    def judge(start: int, scores: np.ndarray) -> None:
        part = slice(start, start + len(scores))
        own = scores[np.arange(len(scores)), targets[part]]
        if relevant is not None:
            for row, target in enumerate(targets[part]):
                scores[row, relevant.other_relevant_items(start + row, target)] = -np.inf
        ranks[part] = count_not_below(scores, own)
        if losses is not None and scale is not None:
            losses[part] = _losses(scores, own, scale)

    items = torch.from_numpy(corpus).to(device)
    with own_threads() as threads:
        for start in range(0, len(queries), rows)[index::world]:
            scores = multiply(queries[start : start + rows], items).cpu().numpy()
            parts = bands(scores, torch.get_num_threads())
            list(threads.map(lambda part: judge(*part), ((start + first, part) for first, part in parts)))
    return Ranked(ranks, losses)


def multiply(queries: np.ndarray, items: torch.Tensor) -> torch.Tensor:
    """Return the products of vectors, float32 (queries, items), on the device of `items`.

    The host's are NumPy's, whose bits differ from torch's: earlier verdicts and mined negatives are made of them.
    """
    if items.device == HOST:
        return torch.from_numpy(queries @ items.numpy().T)
    return torch.from_numpy(queries).to(items.device) @ items.T


def count_not_below(scores: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Return how many scores of each row are not below the row's own score, int64 (rows,).

    Equal and NaN scores count; if the own score is NaN, all count. Give ignored items the score -inf. The counts of the
    parts of a corpus add up to the count of the whole.

    Args:
        scores: (rows, items).
        own: (rows,).
    """
    return scores.shape[1] - np.count_nonzero(scores < own[:, None], axis=1)


def bands(scores: np.ndarray, most: int) -> Iterator[tuple[int, np.ndarray]]:
    """Split the scores into at most `most` bands of equal size; yield each with the index of its first row."""
    rows = max(1, -(-len(scores) // most))
    for first in range(0, len(scores), rows):
        yield first, scores[first : first + rows]


def _losses(scores: np.ndarray, own: np.ndarray, scale: float) -> np.ndarray:
    """Return the cross entropy of the own item, float32 (queries,); the scores are overwritten."""
    scores -= own[:, None]
    scores *= scale
    highest = scores.max(axis=1, keepdims=True)  # NaN for a row with NaN, and so is the loss
    scores -= highest
    return np.log(np.exp(scores, out=scores).sum(axis=1)) + highest[:, 0]
