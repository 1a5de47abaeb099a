"""Whether the newest labels contradict those before them, by a model that has seen the earlier ones alone."""

import numpy as np

from tasks.contracts.evaluation import Role
from tasks.quality.row_metrics import area_by_chance, area_under_roc
from tasks.quality.row_results import RowResults


def contradicted(rows: RowResults, newest: str) -> str:
    """Return a sentence where the champion tells the classes of the earlier spans apart, and takes one for the other
    in the newest span. Empty where it does not, or was not measured.

    It does so where its AUC is above what guessing reaches in the one, and below what guessing keeps in the other, each
    with a chance of 95 %.
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
    """Return the champion's AUC, and what guessing stays below; None where a class has no row, or the AUC is NaN."""
    classes = rows.label_class[among]
    area = area_under_roc(classes, rows.probabilities[Role.champion][among])
    chance = area_by_chance(int((classes == 1).sum()), int((classes == 0).sum()))
    return (None, 1.0) if area is None or chance is None or np.isnan(area) else (area, chance)
