"""Row results made of plain lists, as gates read them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from tasks.contracts.evaluation import Role
from tasks.quality.row_results import RowResults


def row_results(
    ranks: Mapping[Role, Sequence[int] | np.ndarray],
    *,
    span: Sequence[str] | None = None,
    group: Sequence[int] | None = None,
    item: Sequence[int] | np.ndarray | None = None,
    label_class: Sequence[int] | None = None,
    probabilities: Mapping[Role, Sequence[float]] | None = None,
    held: Sequence[bool] | np.ndarray | None = None,
    unseen: Sequence[bool] | np.ndarray | None = None,
    competitors: Sequence[int] | None = None,
    **columns: Sequence[str],
) -> RowResults:
    """One row for each rank; all are pairs of one span, of other groups and items, of seen queries, without a class.

    A thousand items compete with each row's own, unless `competitors` says otherwise.
    """
    many = len(next(iter(ranks.values())))
    return RowResults(
        row_id=np.array([f"row {at}" for at in range(many)], dtype=object),
        span=np.array(span or ["2026-01"] * many, dtype=object),
        group=np.arange(many) if group is None else np.array(group),
        item_id=np.array([f"item {at}" for at in (range(many) if item is None else item)], dtype=object),
        unseen=np.zeros(many, dtype=bool) if unseen is None else np.array(unseen, dtype=bool),
        query_trained=np.ones(many, dtype=bool) if unseen is None else ~np.array(unseen, dtype=bool),
        pair=np.ones(many, dtype=bool),
        label_class=np.array([-1] * many if label_class is None else label_class, dtype=np.int8),
        columns={name: np.array(values, dtype=object) for name, values in columns.items()},
        ranks={role: np.array(values, dtype=np.int32) for role, values in ranks.items()},
        competitors=np.full(many, 1000, dtype=np.int32) if competitors is None else np.array(competitors, np.int32),
        held=None if held is None else np.array(held, dtype=bool),
        losses={role: np.log(np.array(values, dtype=np.float32)) for role, values in ranks.items()},
        probabilities={role: np.array(values, dtype=np.float32) for role, values in (probabilities or {}).items()},
        predicted={role: (np.array(values) >= 0.5).astype(np.int8) for role, values in (probabilities or {}).items()},
    )
