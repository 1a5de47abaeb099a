"""The rank of each query's own item among a corpus, by cosine, in chunks of bounded memory."""

import numpy as np

CHUNK_QUERIES = 512
CHUNK_SCORES = 2**24  # in memory at once, 64 MiB; against a larger corpus a chunk has fewer queries


def ranks_of_targets(
    queries: np.ndarray, corpus: np.ndarray, targets: np.ndarray, share: tuple[int, int] = (0, 1)
) -> np.ndarray:
    """Return the rank of each query's own item by cosine among all items of the corpus, int64 (queries,), from 1.

    An item with an equal score ranks before the own item, so that a collapsed model scores badly, not perfectly; so
    does every item if a score is NaN.

    Args:
        queries: float32 (queries, width), unit vectors.
        corpus: float32 (items, width), unit vectors.
        targets: int64 (queries,), row of the own item in the corpus.
        share: this worker's number and how many there are: each ranks some of the queries, the others' ranks are 0.
            The chunks, and so the numbers, are the same for any number of workers.
    """
    ranks = np.zeros(len(queries), dtype=np.int64)
    rows = max(1, min(CHUNK_QUERIES, CHUNK_SCORES // max(1, len(corpus))))
    index, world = share
    for start in range(0, len(queries), rows)[index::world]:
        part = slice(start, start + rows)
        scores = queries[part] @ corpus.T
        own = scores[np.arange(len(scores)), targets[part]]
        ranks[part] = (~(scores < own[:, None])).sum(axis=1)
    return ranks
