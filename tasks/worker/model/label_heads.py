"""Label heads: each learns one value per row from a column, and has one file and one entry here.

All heads are applied to vectors on the host: one small product each, the same on every device.
"""

from collections.abc import Mapping
from typing import Literal

import numpy as np
from torch import nn

from configs.schema.model import LabelHead
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model import multiclass, regression
from tasks.worker.model.embedding_model import EmbeddingModel
from tasks.worker.model.label_task import LabelTask

# By section name below `heads` in the configuration.
LABEL_TASKS: dict[str, LabelTask] = {"multiclass": multiclass.TASK, "regression": regression.TASK}


CHUNK_ROWS = 4096


def head_inputs(kind: Literal["query", "pair"], query: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Return a head's inputs from unit vectors float32 (rows, width): query, or query, item and their product."""
    return query if kind == "query" else np.concatenate([query, item, query * item], axis=1)


def classify(model: EmbeddingModel, accelerator: Accelerator, query: np.ndarray, item: np.ndarray) -> np.ndarray:
    """Return the probabilities of class 1, float32 (rows,), for unit vectors float32 (rows, width)."""
    assert model.classifier is not None
    assert model.shape.classifier is not None
    logits = _outputs(model.classifier, model.shape.classifier, accelerator, query, item)
    found: np.ndarray = (1.0 + np.tanh((logits[:, 1] - logits[:, 0]) / 2)) / 2  # softmax of two, without overflow
    return found


def label_outputs(
    model: EmbeddingModel, head: str, accelerator: Accelerator, query: np.ndarray, item: np.ndarray
) -> np.ndarray:
    """Return the outputs of a label head, float32 (rows, outputs), for unit vectors float32 (rows, width)."""
    linear = model.label_heads[head]
    assert isinstance(linear, nn.Linear)
    return _outputs(linear, model.shape.label_heads[head].input, accelerator, query, item)


def label_answers(
    model: EmbeddingModel,
    heads: Mapping[str, LabelHead],
    accelerator: Accelerator,
    query: np.ndarray,
    item: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return each head's prediction per row, float32 (rows,); heads that the model lacks are left out."""
    alike = [name for name, head in heads.items() if (own := model.shape.label_heads.get(name)) is not None
             and own.meaning == head.meaning]  # fmt: skip
    return {
        name: LABEL_TASKS[name].predict(label_outputs(model, name, accelerator, query, item), heads[name])
        for name in alike
    }


def _outputs(
    linear: nn.Linear, kind: Literal["query", "pair"], accelerator: Accelerator, query: np.ndarray, item: np.ndarray
) -> np.ndarray:
    weight, bias = (accelerator.fetch(each).numpy() for each in (linear.weight, linear.bias))
    found = np.zeros((len(query), len(bias)), dtype=np.float32)
    for start in range(0, len(query), CHUNK_ROWS):
        some = slice(start, start + CHUNK_ROWS)
        found[some] = head_inputs(kind, query[some], item[some]) @ weight.T + bias
    return found
