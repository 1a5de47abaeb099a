"""The interface of a label head, which learns one value per row: loss, predictions, and the fit at the end of a run."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

FOLDS = 5
STRENGTHS = (0.1, 1.0, 10.0)  # inverse strength of the L2 penalty, for inputs of about unit length


class FittedHead(NamedTuple):
    """A fitted head: outputs are inputs @ weight.T + bias.

    Metrics are cross-validated on rows that the encoder was trained on.
    """

    weight: np.ndarray  # float32 (outputs, inputs)
    bias: np.ndarray  # float32 (outputs,)
    strength: float
    metrics: dict[str, float]


class LabelledRows(NamedTuple):
    """Rows to fit a head on; near-duplicates share a fold, 0 to FOLDS - 1."""

    inputs: np.ndarray  # float32 (rows, inputs)
    truth: np.ndarray  # float64 (rows,), as `label_values` returns it
    counts: np.ndarray  # float64 (rows,): weight of each row
    folds: np.ndarray  # int64 (rows,)


class LabelTask(NamedTuple):
    """One kind of head. The last argument is its section of the configuration; truth comes from `label_values`."""

    # Outputs float32 (b, outputs) and truth float32 (b,), 0 if missing -> the loss of each row, float32 (b,).
    losses: Callable[[torch.Tensor, torch.Tensor, Any], torch.Tensor]
    # Outputs float32 (rows, outputs) -> the prediction for each row, float32 (rows,): a class index or a number.
    predict: Callable[[np.ndarray, Any], np.ndarray]
    # Summed weight of a run's rows by value, float64 (values,) -> weight of a row of each value; empty: all equal.
    balance: Callable[[np.ndarray, Any], np.ndarray]
    # Reason why there are too few rows to fit; empty if enough.
    find_shortage: Callable[[np.ndarray, Any], str]
    # Training rows, and rows that neither encoder nor head was trained on, which calibrate it; None: there are none.
    solve: Callable[[LabelledRows, LabelledRows | None, Any], FittedHead]
    # Python code that computes `says` from `outputs` and `settings`, the exported config.json.
    scoring: str


def cross_validate(known: LabelledRows, fit: Callable[[LabelledRows], tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return cross-validated outputs, float64 (rows, outputs): each row's from a fit without its fold."""
    found = None
    for fold in np.unique(known.folds):
        own = known.folds == fold
        weight, bias = fit(LabelledRows(*(each[~own] for each in known)))
        found = np.zeros((len(own), len(bias))) if found is None else found
        found[own] = known.inputs[own] @ weight.T + bias
    assert found is not None
    return found
