"""What the narrower widths of a model's vectors are worth: the first numbers of each, normalised again."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from tasks.quality.row_metrics import RANKING
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model.ranks import rank_targets
from tasks.worker.training.holdout import Embedded, Holdout

METRIC = "recall@10"


def ranks_by_width(
    widths: Sequence[int], accelerator: Accelerator, holdout: Holdout, embedded: Embedded
) -> dict[int, np.ndarray]:
    """Return the rank of each row's own item, int64 (rows,) from 1, at each width below the vectors' own.

    The workers share the work and all get the whole answer.
    """
    found, rank = {}, accelerator.rank
    for width in widths:
        if width < embedded.corpus.shape[1]:
            queries, corpus = (_narrowed(side, width) for side in (embedded.queries, embedded.corpus))
            part = rank_targets(queries, corpus, holdout.target, (rank.index, rank.world), holdout.relevant).ranks
            found[width] = accelerator.sum(torch.from_numpy(part)).numpy()
    return found


def recall_by_width(ranks: Mapping[int, np.ndarray], among: np.ndarray) -> dict[int, float]:
    """Return recall@10 at each width over the rows where the bool array `among` is true; empty where none is."""
    return {width: float(RANKING[METRIC](each[among]).mean()) for width, each in ranks.items() if among.any()}


def _narrowed(vectors: np.ndarray, width: int) -> np.ndarray:
    """Return the first numbers of unit vectors, float32 (rows, width), normalised again; a vector of zeros stays."""
    narrow = vectors[:, :width]
    lengths = np.linalg.norm(narrow, axis=1, keepdims=True)
    return np.divide(narrow, lengths, out=np.zeros_like(narrow), where=lengths != 0)
