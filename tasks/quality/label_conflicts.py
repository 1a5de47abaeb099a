"""Detect flipped labels: score the newest labels with the champion, which has seen only earlier labels."""

import numpy as np

from tasks.contracts.evaluation import Role
from tasks.quality.row_metrics import area_by_chance, area_under_roc
from tasks.quality.row_results import RowResults


def contradicted(rows: RowResults, newest: str) -> str:
    """Return a sentence if the champion separates the classes of earlier spans, but swaps them in the newest span.

    Its AUC must be above the range of a random classifier in the earlier spans, and below it in the newest one, both at
    95 %. Empty if not, or if the champion was not measured.
    """
    if Role.champion not in rows.probabilities:
        return ""
    known = ~rows.golden & (rows.label_class >= 0)
    new = known & (rows.span == newest)
    (area, chance), (area_before, chance_before) = (_area(rows, among) for among in (new, known & ~new))
    if area is None or area_before is None or area >= 1 - chance or area_before <= chance_before:
        return ""
    return (
        f"The labels of span {newest} contradict those before: the champion's AUC is {area:.4f} on its {new.sum():,} "
        f"holdout rows with a class, where guessing keeps above {1 - chance:.4f}, and {area_before:.4f} on the spans "
        "before it. If they are turned round, ingest the span again with --replace."
    )


def _area(rows: RowResults, among: np.ndarray) -> tuple[float | None, float]:
    """Return the champion's AUC and the 95 % upper bound of a random classifier; None if undefined or NaN."""
    classes = rows.label_class[among]
    area = area_under_roc(classes, rows.probabilities[Role.champion][among])
    chance = area_by_chance(int((classes == 1).sum()), int((classes == 0).sum()))
    return (None, 1.0) if area is None or chance is None or np.isnan(area) else (area, chance)
