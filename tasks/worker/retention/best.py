"""Which step a run keeps: the best by development rows, which are a part of its training rows.

The holdout is what gates judge by. A step chosen by it would look better there than it is, so it has no say in this.
"""

import math
from collections.abc import Sequence

from configs.schema.retention import KeepBestConfig
from tasks.contracts.checkpoints import CurvePoint, HoldoutRule
from tasks.contracts.references import RowsRef

LARGEST_SHARE = 0.1  # of the training rows


def without_development_rows(
    rule: HoldoutRule, settings: KeepBestConfig | None, rows: Sequence[RowsRef]
) -> HoldoutRule:
    """Return the rule whose training side is what a run over `rows` is trained on.

    Development rows are the groups whose hashes follow those of the holdout, so equal texts stay on one side here too.
    """
    if settings is None:
        return rule
    training = sum(ref.rows for ref in rows) * (1 - rule.share)
    share = min(LARGEST_SHARE, settings.rows / max(training, 1.0))
    return rule.model_copy(update={"share": rule.share + share * (1 - rule.share), "measured": rule.measured_share})


def best_step(curve: Sequence[CurvePoint], settings: KeepBestConfig) -> int | None:
    """Return the first step with the best value of the metric; None where it was never measured."""
    sign = 1.0 if settings.higher_is_better else -1.0
    measured = [(point.metrics[settings.metric], point.step) for point in curve if settings.metric in point.metrics]
    values = [(sign * value, -step) for value, step in measured if not math.isnan(value)]
    return -max(values)[1] if values else None


def out_of_patience(curve: Sequence[CurvePoint], settings: KeepBestConfig) -> bool:
    """Return whether the last `patience` evaluations have brought no gain."""
    best = best_step(curve, settings)
    if settings.patience is None or best is None:
        return False
    return sum(point.step > best for point in curve) >= settings.patience
