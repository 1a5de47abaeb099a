"""Metrics of each model on parts of the holdout: each span, unseen queries, seen queries.

The newest span shows staleness, the others forgetting. On queries, recall@10 has its interval.
"""

from collections.abc import Sequence

import numpy as np

from tasks.contracts.evaluation import GOLDEN, MAIN, ByQueries, PartMetrics, Role, SpanMetrics
from tasks.quality.intervals import interval_of
from tasks.quality.row_results import RowResults
from tasks.quality.selection import answers_of, counting

MOST_SPANS = 60


def metrics_by_span(results: RowResults, order: Sequence[str]) -> tuple[SpanMetrics, ...]:
    """Return the metrics of the newest spans with holdout rows, at most MOST_SPANS.

    Args:
        order: the names of the spans, oldest first.
    """
    there = set(results.span) - {GOLDEN}
    found = []
    for span in [name for name in order if name in there][-MOST_SPANS:]:
        among = results.span == span
        metrics = {role: results.metrics(role, among) for role in results.roles}
        rows = int((among & results.pair).sum()) or int(among.sum())
        found.append(SpanMetrics(span=span, rows=rows, metrics=metrics))
    return tuple(found)


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
