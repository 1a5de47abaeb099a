"""The rank and the loss of each query's own item among a corpus, by cosine, in chunks of bounded memory.

They are counted where the accelerator computes; a device that compiles graphs leaves them to the host's threads, since
each size of a corpus would be another graph.
"""

from typing import NamedTuple

import numpy as np
import torch

from tasks.worker.ranking.relevant import Relevant

CHUNK_QUERIES = 512
CHUNK_SCORES = 2**24  # in memory at once, 64 MiB; against a larger corpus a chunk has fewer queries
COUNTED_AT_ONCE = 8192  # scores of a query
HOST = torch.device("cpu")
COUNTS_ON = ("cpu", "cuda")  # kinds of devices that run each operation at once


class Ranked(NamedTuple):
    """Of each query's own item: `ranks` int64 (queries,) from 1; `losses` float32 (queries,) in nats."""

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
    """Rank each query's own item by cosine among all items of the corpus that are not as right.

    An item with an equal score ranks before the own item, so that a collapsed model scores badly, not perfectly; so
    does every item if a score is NaN.

    Args:
        queries: float32 (queries, width), unit vectors.
        corpus: float32 (items, width), unit vectors.
        targets: int64 (queries,), row of the own item in the corpus.
        share: this worker's number and how many there are: each ranks some of the queries, the others' ranks and losses
            are 0. The chunks, and so the numbers, are the same for any number of workers.
        relevant: which items are as right; None: no other item is.
        scale: inverse temperature of the softmax over the same items, whose cross entropy is the loss; None: no losses.
        device: of the accelerator.
    """
    ranks = np.zeros(len(queries), dtype=np.int64)
    losses = None if scale is None else np.zeros(len(queries), dtype=np.float32)
    rows = max(1, min(CHUNK_QUERIES, CHUNK_SCORES // max(1, len(corpus))))
    index, world = share
    device = device if device.type in COUNTS_ON else HOST
    items = torch.from_numpy(corpus).to(device) if device.type != "cpu" else None
    for start in range(0, len(queries), rows)[index::world]:
        part = slice(start, start + rows)
        target = torch.from_numpy(targets[part]).to(device)
        scores = _scores(queries[part], corpus, items)
        own = scores.gather(1, target[:, None])[:, 0]
        if relevant is not None:
            found = [relevant.as_right(start + row, each) for row, each in enumerate(targets[part])]
            of = np.repeat(np.arange(len(found)), [len(each) for each in found])
            right = np.concatenate(found) if found else np.zeros(0, np.int64)
            scores[torch.from_numpy(of).to(device), torch.from_numpy(right).to(device)] = -torch.inf
        ranks[part] = count_not_below(scores, own).cpu().numpy()
        if losses is not None and scale is not None:
            losses[part] = _losses(scores, own, scale).cpu().numpy()
    return Ranked(ranks, losses)


def _scores(queries: np.ndarray, corpus: np.ndarray, items: torch.Tensor | None) -> torch.Tensor:
    """Return the scores of queries with all items (queries, items); on the host NumPy's products are as fast.

    Args:
        items: the corpus on another device; None: on the host.
    """
    if items is None:
        return torch.from_numpy(queries @ corpus.T)
    return torch.from_numpy(queries).to(items.device) @ items.T


def count_not_below(scores: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Return how many scores of each row are not below the row's own one, int64 (rows,) on their device.

    A score that is equal counts, and one that is NaN; against an own one that is NaN all count. An item that does not
    compete has the score -inf. The counts of parts of a corpus add up to that of the whole.

    Args:
        scores: (rows, items), of any floating type.
        own: (rows,), of the same type.
    """
    below = torch.zeros(len(scores), dtype=torch.int64, device=scores.device)
    for some in scores.split(COUNTED_AT_ONCE, dim=1):
        # As float32, since torch takes several times as long to add up truth values; so few are exact.
        found = torch.empty_like(some, dtype=torch.float32)
        below += torch.lt(some, own[:, None], out=found).sum(dim=1).long()
    return scores.shape[1] - below


def _losses(scores: torch.Tensor, own: torch.Tensor, scale: float) -> torch.Tensor:
    """Return the cross entropy of the own item (rows,); the scores are overwritten. That of a row with NaN is NaN."""
    scores -= own[:, None]
    scores *= scale
    highest = scores.amax(dim=1, keepdim=True)
    scores -= highest
    return scores.exp_().sum(dim=1).log_() + highest[:, 0]
