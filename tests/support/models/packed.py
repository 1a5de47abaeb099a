"""Texts as the model gets them, from their token ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tasks.worker.model.embedding_model import Texts
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.packing import pack


def packed(
    texts: Sequence[Sequence[int]], tokens: int, features: FeatureArrays | None = None, sequences: int | None = None
) -> Texts:
    """Texts of given ids in sequences of `tokens`; without features if there are none."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    ids = np.array([token for text in texts for token in text], dtype=np.int32)
    packing = pack(lengths, tokens, sequences)
    laid = packing.tokens(ids, np.cumsum(lengths) - lengths, tokens, 0)
    none = FeatureArrays(np.zeros((len(texts), 0), np.float32), np.zeros((len(texts), 0), np.int64))
    return Texts.of(packing, laid, features or none)
