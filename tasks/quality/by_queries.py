"""Metrics of each model on unseen and on seen queries apart, with the interval of recall@10 on each part."""

import numpy as np

from tasks.contracts.evaluation import MAIN, ByQueries, PartMetrics, Role
from tasks.quality.intervals import interval_of
from tasks.quality.row_results import RowResults
from tasks.quality.selection import answers_of, counting


def metrics_by_queries(results: RowResults) -> dict[Role, ByQueries]:
    """Return the metrics of each measured model over the holdout, by role.

    Challenger and champion are ranked among the items that both hold, as in `RowResults.compared`.
    """
    holdout = ~results.golden
    seen = holdout & ~results.unseen
    counted = seen & results.pair
    trained = float(results.query_trained[counted].mean()) if counted.any() else None
    return {
        role: ByQueries(
            unseen=_part(results, role, holdout & results.unseen),
            seen=_part(results, role, seen),
            seen_trained=trained,
        )
        for role in results.roles
    }


def _part(results: RowResults, role: Role, among: np.ndarray) -> PartMetrics:
    baseline = Role.champion if Role.champion in results.ranks else None
    compared = role in (Role.challenger, Role.champion)
    metrics = results.compared(role, among) if compared else results.metrics(role, among)
    pairs = int((among & results.pair).sum())
    against = baseline if compared else None
    counted = among & counting(results, MAIN, role, against)
    if not counted.any():
        return PartMetrics(rows=pairs, metrics=metrics, low=None, high=None)
    low, high = interval_of(answers_of(results, MAIN, counted, [role], against))
    return PartMetrics(rows=pairs, metrics=metrics, low=low, high=high)
