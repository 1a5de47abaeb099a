"""What the narrower widths of a model's vectors are worth: the first numbers of each, normalised again."""

import numpy as np
import torch

from tasks.measures.row_metrics import RANKING
from tasks.worker.accelerators import Accelerator
from tasks.worker.ranking.ranks import rank_targets
from tasks.worker.training.holdout import Embedded, Holdout

METRIC = "recall@10"


def recall_by_width(
    widths: tuple[int, ...], accelerator: Accelerator, holdout: Holdout, embedded: Embedded, among: np.ndarray
) -> dict[int, float]:
    """Return recall@10 at each width below the vectors' own; the workers share the work and all get the whole answer.

    Args:
        among: the rows that count, bool (rows,).
    """
    found, rank = {}, accelerator.rank
    counted = among & holdout.pair
    for width in widths:
        if width < embedded.corpus.shape[1] and counted.any():
            queries, corpus = (_narrowed(side, width) for side in (embedded.queries, embedded.corpus))
            part = rank_targets(queries, corpus, holdout.target, (rank.index, rank.world), holdout.relevant).ranks
            ranks = accelerator.sum(torch.from_numpy(part)).numpy()
            found[width] = float(RANKING[METRIC](ranks[counted]).mean())
    return found


def _narrowed(vectors: np.ndarray, width: int) -> np.ndarray:
    """Return the first numbers of unit vectors, float32 (rows, width), normalised again; a vector of zeros stays."""
    narrow = vectors[:, :width]
    lengths = np.linalg.norm(narrow, axis=1, keepdims=True)
    return np.divide(narrow, lengths, out=np.zeros_like(narrow), where=lengths != 0)
