"""What a head that learns one value of each row is: its loss, its answers, and how it is solved at the end of a run."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

FOLDS = 5
STRENGTHS = (0.1, 1.0, 10.0)  # inverse strength of the L2 penalty, for inputs of about unit length


class LabelSolved(NamedTuple):
    """A head: outputs are inputs @ weight.T + bias. The metrics are of rows that the fits had not seen."""

    weight: np.ndarray  # float32 (outputs, inputs)
    bias: np.ndarray  # float32 (outputs,)
    strength: float
    metrics: dict[str, float]


class Known(NamedTuple):
    """Rows to solve a head on; rows that resemble each other share their fold, 0 to FOLDS - 1."""

    inputs: np.ndarray  # float32 (rows, inputs)
    truth: np.ndarray  # float64 (rows,), as `label_values` has it
    counts: np.ndarray  # float64 (rows,): what each counts
    folds: np.ndarray  # int64 (rows,)


class LabelTask(NamedTuple):
    """One kind of head. `settings` is its section of the configuration, truth is as `label_values` has it."""

    # Outputs float32 (b, outputs) and truth float32 (b,), 0 where there is none -> the loss of each row, float32 (b,).
    losses: Callable[[torch.Tensor, torch.Tensor, Any], torch.Tensor]
    # Outputs float32 (rows, outputs) -> what the head says of each row, float32 (rows,): a class's number, or a number.
    says: Callable[[np.ndarray, Any], np.ndarray]
    # What the rows of a run count, by value, float64 (values,) -> what a row of each counts; empty: all the same.
    balance: Callable[[np.ndarray, Any], np.ndarray]
    # Why rows are too few to solve the head on; empty: they are not.
    too_few: Callable[[np.ndarray, Any], str]
    solve: Callable[[Known, Any], LabelSolved]
    # Python that makes `says` of `outputs` and `settings`, the exported config.json.
    scoring: str


def unseen_outputs(known: Known, fit: Callable[[Known], tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    """Return the outputs of each row by a fit without its fold, float64 (rows, outputs)."""
    found = None
    for fold in np.unique(known.folds):
        own = known.folds == fold
        weight, bias = fit(Known(*(each[~own] for each in known)))
        found = np.zeros((len(own), len(bias))) if found is None else found
        found[own] = known.inputs[own] @ weight.T + bias
    assert found is not None
    return found
