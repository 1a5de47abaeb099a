"""A number between two bounds: squared error on a scale from -1 to 1, fitted as ridge regression."""

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from configs.schema.model import RegressionHead
from tasks.quality.label_metrics import label_metrics
from tasks.worker.model.label_task import FOLDS, STRENGTHS, FittedHead, LabelledRows, LabelTask, cross_validate

LEAST_ROWS = 2 * FOLDS
SMALLEST_ERROR = 1e-6  # an output's; a prior of no width has no solution
SLOPE_DEVIATION = 0.5  # the normal prior's, of a correction by unseen rows, around 1


def middle_and_reach(settings: RegressionHead) -> tuple[float, float]:
    """Return the middle of the bounds and half of their distance: an output of 1 is the upper bound."""
    return (settings.low + settings.high) / 2, (settings.high - settings.low) / 2


def losses(outputs: torch.Tensor, truth: torch.Tensor, settings: RegressionHead) -> torch.Tensor:
    """Return the squared error of each row, in units of half the distance between the bounds."""
    middle, reach = middle_and_reach(settings)
    return (outputs[:, 0] - (truth - middle) / reach) ** 2


def predict(outputs: np.ndarray, settings: RegressionHead) -> np.ndarray:
    """Return the predicted number of each row, clipped to the bounds."""
    middle, reach = middle_and_reach(settings)
    return np.clip(middle + reach * outputs[:, 0], settings.low, settings.high).astype(np.float32)


def balance(counts: np.ndarray, settings: RegressionHead) -> np.ndarray:
    return np.zeros(0)


def find_shortage(truth: np.ndarray, settings: RegressionHead) -> str:
    return f"there are {len(truth)} rows of {LEAST_ROWS}" if len(truth) < LEAST_ROWS else ""


@threadpool_limits.wrap(limits=1, user_api="blas")  # the rounding of more threads depends on their number
def solve(known: LabelledRows, unseen: LabelledRows | None, settings: RegressionHead) -> FittedHead:
    """Return the head whose penalty strength gives the lowest cross-validated error."""
    crossed = {each: cross_validate(known, lambda rows, each=each: _fit(rows, settings, each)) for each in STRENGTHS}
    metrics = {each: label_metrics("regression", known.truth, predict(crossed[each], settings)) for each in STRENGTHS}
    strength = min(STRENGTHS, key=lambda each: metrics[each]["rmse"])
    weight, bias = _fit(known, settings, strength)
    if unseen is not None:
        _, reach = middle_and_reach(settings)
        slope, shift = _correction(
            unseen, weight, bias, settings, max(metrics[strength]["rmse"] / reach, SMALLEST_ERROR)
        )
        weight, bias = slope * weight, slope * bias + shift
    return FittedHead(weight.astype(np.float32), bias.astype(np.float32), strength, metrics[strength])


def _correction(
    unseen: LabelledRows, weight: np.ndarray, bias: np.ndarray, settings: RegressionHead, error: float
) -> tuple[float, float]:
    """Return slope and shift of the outputs that fit unseen rows best, by least squares with a normal prior.

    Args:
        error: cross-validated root mean square, of outputs; the deviation of the shift's prior.
    """
    middle, reach = middle_and_reach(settings)
    outputs, target = (unseen.inputs @ weight.T + bias)[:, 0], (unseen.truth - middle) / reach
    both = np.stack([outputs, np.ones(len(outputs))], axis=1)
    counts = unseen.counts * len(outputs) / unseen.counts.sum()
    prior = np.diag([(error / SLOPE_DEVIATION) ** 2, 1.0])
    away = np.linalg.solve(both.T @ (counts[:, None] * both) + prior, both.T @ (counts * (target - outputs)))
    return max(0.0, 1.0 + float(away[0])), float(away[1])


def _fit(known: LabelledRows, settings: RegressionHead, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Return weight (1, inputs) and bias (1,) of a ridge regression (Hoerl and Kennard 1970), bias unpenalised."""
    middle, reach = middle_and_reach(settings)
    inputs, target = known.inputs.astype(np.float64), (known.truth - middle) / reach
    shares = known.counts / known.counts.sum()
    mean, level = shares @ inputs, shares @ target
    away = inputs - mean
    gram = (away * known.counts[:, None]).T @ away + np.eye(inputs.shape[1]) / strength
    weight = np.linalg.solve(gram, (away * known.counts[:, None]).T @ (target - level))
    return weight[None, :], np.array([level - weight @ mean])


TASK = LabelTask(
    losses=losses,
    predict=predict,
    balance=balance,
    find_shortage=find_shortage,
    solve=solve,
    scoring="""\
low, high = settings["low"], settings["high"]
says = np.clip((low + high) / 2 + (high - low) / 2 * outputs[:, 0], low, high)
""",
)
