"""The classification head on vectors that are on the host: one small product, the same on every device."""

from typing import Literal

import numpy as np

from tasks.worker.accelerators import Accelerator
from tasks.worker.model.embedding_model import EmbeddingModel

CHUNK_ROWS = 4096


def head_inputs(kind: Literal["query", "pair"], query: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Return what a head sees of unit vectors float32 (rows, width): query, or query, item and their product."""
    return query if kind == "query" else np.concatenate([query, item, query * item], axis=1)


def classify(model: EmbeddingModel, accelerator: Accelerator, query: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Return probabilities of class 1, float32 (rows,), of unit vectors float32 (rows, width); not shared."""
    assert model.classifier is not None
    assert model.shape.classifier is not None
    weight, bias = (accelerator.fetch(each).numpy() for each in (model.classifier.weight, model.classifier.bias))
    found = np.zeros(len(query), dtype=np.float32)
    for start in range(0, len(query), CHUNK_ROWS):
        some = slice(start, start + CHUNK_ROWS)
        logits = head_inputs(model.shape.classifier, query[some], item[some]) @ weight.T + bias
        found[some] = (1.0 + np.tanh((logits[:, 1] - logits[:, 0]) / 2)) / 2  # the softmax of two, never too large
    return found
