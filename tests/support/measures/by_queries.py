"""Metrics by queries as an evaluation records them, made of plain numbers."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.contracts.evaluation import MAIN, ByQueries, PartMetrics

ROWS = 50  # of each part
REACH = 0.02  # of an interval on each side


def by_queries(seen: Mapping[str, float], less: float = 0.1, seen_trained: float = 1.0) -> ByQueries:
    """Metrics of seen queries, and the same less a number for unseen ones."""
    unseen = {name: value - less for name, value in seen.items()}
    return ByQueries(unseen=_part(unseen), seen=_part(seen), seen_trained=seen_trained)


def _part(metrics: Mapping[str, float]) -> PartMetrics:
    main = metrics.get(MAIN)
    bounds = (None, None) if main is None else (main - REACH, main + REACH)
    return PartMetrics(rows=ROWS, metrics=dict(metrics), low=bounds[0], high=bounds[1])
