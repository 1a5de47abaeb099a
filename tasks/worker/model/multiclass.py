"""One of several classes: cross entropy over the classes, fitted as multinomial logistic regression.

The probabilities of a fitted head are calibrated by one temperature (Guo et al. 2017, arXiv:1706.04599, section 4.2),
which changes no prediction. With `balanced` they assume equally frequent classes.
"""

import numpy as np
import scipy.optimize
import scipy.special
import torch
import torch.nn.functional as F
from threadpoolctl import threadpool_limits

from configs.schema.model import MulticlassHead
from tasks.quality.label_metrics import label_metrics
from tasks.worker.model.label_task import STRENGTHS, FittedHead, LabelledRows, LabelTask, cross_validate

MOST_STEPS = 1000
LOG_DEVIATION = 0.5  # the normal prior's, of a correction by unseen rows, around 1; as for two classes
COLDEST, HOTTEST = 0.05, 20.0  # bounds of the temperature


def losses(outputs: torch.Tensor, truth: torch.Tensor, settings: MulticlassHead) -> torch.Tensor:
    """Return the cross entropy of each row. Classes are compared as floats, without 64-bit integers."""
    numbers = torch.arange(settings.outputs, device=outputs.device, dtype=torch.float32)
    own = (truth[:, None] == numbers[None, :]).float()
    return -(own * F.log_softmax(outputs, dim=1)).sum(dim=1)


def predict(outputs: np.ndarray, settings: MulticlassHead) -> np.ndarray:
    """Return the index of the likeliest class of each row; NaN if one of its outputs is not finite."""
    named = outputs.argmax(axis=1).astype(np.float32)
    return np.where(np.isfinite(outputs).all(axis=1), named, np.float32("nan"))


def balance(counts: np.ndarray, settings: MulticlassHead) -> np.ndarray:
    """Return the weight of a row of each class: all classes present weigh the same (King and Zeng 2001)."""
    if settings.loss != "balanced":
        return np.zeros(0)
    there = counts > 0
    return np.divide(counts.sum() / max(there.sum(), 1), counts, out=np.ones(len(counts)), where=there)


def find_shortage(truth: np.ndarray, settings: MulticlassHead) -> str:
    """Return a message if a class has no row; empty if each has one."""
    counts = np.bincount(truth.astype(np.int64), minlength=settings.outputs)
    absent = [name for name, count in zip(settings.classes, counts, strict=True) if not count]
    return f"no row has the class {absent[0]}" if absent else ""


@threadpool_limits.wrap(limits=1, user_api="blas")  # the rounding of more threads depends on their number
def solve(known: LabelledRows, unseen: LabelledRows | None, settings: MulticlassHead) -> FittedHead:
    """Return the head whose penalty strength gives the best cross-validated macro F1."""
    crossed = {each: cross_validate(known, lambda rows, each=each: _fit(rows, settings, each)) for each in STRENGTHS}
    metrics = {each: label_metrics("multiclass", known.truth, predict(crossed[each], settings)) for each in STRENGTHS}
    strength = max(STRENGTHS, key=lambda each: metrics[each]["multiclass_macro_f1"])
    weight, bias = _fit(known, settings, strength)
    told = _seen_in_other_folds(known)
    warmth = 1.0 / _temperature(crossed[strength][told], LabelledRows(*(each[told] for each in known)))
    if unseen is not None:
        warmth /= _temperature(warmth * (unseen.inputs @ weight.T + bias), unseen, LOG_DEVIATION)
    weight, bias = ((warmth * each).astype(np.float32) for each in (weight, bias))
    return FittedHead(weight, bias, strength, metrics[strength])


def _fit(known: LabelledRows, settings: MulticlassHead, strength: float) -> tuple[np.ndarray, np.ndarray]:
    """Return weight (classes, inputs) and bias (classes,); a class without a row is never predicted."""
    from sklearn.linear_model import LogisticRegression  # slow to import, and few runs need it

    weight, bias = np.zeros((settings.outputs, known.inputs.shape[1])), np.full(settings.outputs, -1e4)
    classes = known.truth.astype(np.int64)
    there = np.unique(classes)
    if len(there) == 1:
        bias[there] = 0.0
        return weight, bias
    balanced = "balanced" if settings.loss == "balanced" else None
    fitted = LogisticRegression(C=strength, class_weight=balanced, max_iter=MOST_STEPS)
    fitted.fit(known.inputs, classes, sample_weight=known.counts)
    if len(there) == 2:  # scikit-learn returns only the difference of the two
        half = np.stack([-fitted.coef_[0], fitted.coef_[0]]) / 2
        weight[there], bias[there] = half, np.array([-0.5, 0.5]) * np.ravel(fitted.intercept_)[0]
    else:
        weight[there], bias[there] = fitted.coef_, fitted.intercept_
    return weight, bias


def _seen_in_other_folds(known: LabelledRows) -> np.ndarray:
    """Return bool (rows,): True if another fold has a row of the row's class; else no fit without the row names it."""
    both, each = np.unique(np.stack([known.truth, known.folds]), axis=1), known.truth.astype(np.int64)
    folds: np.ndarray = np.bincount(both[0].astype(np.int64), minlength=int(each.max()) + 1)
    return folds[each] > 1


def _temperature(outputs: np.ndarray, known: LabelledRows, deviation: float = np.inf) -> float:
    """Return the temperature that maximises the likelihood of the classes, given outputs of fits without these rows.

    Without a row it is 1.

    Args:
        deviation: of the normal prior of its logarithm; infinite: none.
    """
    if not len(known.truth):
        return 1.0
    own = (np.arange(len(known.truth)), known.truth.astype(np.int64))

    def loss(exponent: float) -> float:
        each = scipy.special.log_softmax(outputs / np.exp(exponent), axis=1)[own]
        return -float(each @ known.counts) * len(each) / known.counts.sum() + (exponent / deviation) ** 2 / 2

    found = scipy.optimize.minimize_scalar(loss, bounds=(np.log(COLDEST), np.log(HOTTEST)), method="bounded")
    return float(np.exp(found.x))


TASK = LabelTask(
    losses=losses,
    predict=predict,
    balance=balance,
    find_shortage=find_shortage,
    solve=solve,
    scoring="""\
probabilities = np.exp(outputs - outputs.max(axis=1, keepdims=True))
probabilities /= probabilities.sum(axis=1, keepdims=True)  # in the order of settings["classes"]
says = outputs.argmax(axis=1)  # the number of the class
""",
)
