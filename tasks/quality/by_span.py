"""Metrics of each model on each span's holdout rows: staleness on the newest span, forgetting on the others."""

from collections.abc import Sequence

from tasks.contracts.evaluation import GOLDEN, SpanMetrics
from tasks.quality.row_results import RowResults

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
