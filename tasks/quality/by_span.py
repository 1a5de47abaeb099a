"""Each model on each span's holdout rows: what staleness costs on the newest span, and what is forgotten of others."""

from collections.abc import Sequence

from tasks.contracts.evaluation import GOLDEN, SpanMetrics
from tasks.quality.row_results import RowResults

MOST_SPANS = 60


def metrics_by_span(results: RowResults, order: Sequence[str]) -> tuple[SpanMetrics, ...]:
    """Return the metrics of the newest spans that have holdout rows, at most 60.

    Args:
        order: the names of the spans, oldest first.
    """
    there = set(results.span) - {GOLDEN}
    found = []
    for span in [name for name in order if name in there][-MOST_SPANS:]:
        among = results.span == span
        metrics = {role: results.metrics(role, among) for role in results.roles}
        found.append(SpanMetrics(span=span, rows=int(among.sum()), metrics=metrics))
    return tuple(found)
