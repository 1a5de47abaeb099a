"""Results of a model made of plain numbers: answers to a holdout, metrics by queries, results of rows."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from tasks.contracts.evaluation import (
    COMPETITORS,
    GROUP,
    ITEM_ID,
    LABEL_CLASS,
    MAIN,
    PAIR,
    QUERY_KEY,
    ROW_ID,
    SPAN,
    UNSEEN,
    ByQueries,
    PartMetrics,
    Role,
    predicted_of,
    probability_of,
    rank_of,
)
from tasks.quality.row_results import RowResults


def write_answers(
    store: Store, key: str, ranks: Sequence[int] | np.ndarray, probabilities: Sequence[float] | np.ndarray | None = None
) -> str:
    """Write answers to as many rows, each of another query; return the key. Every second row is of class 1."""
    rows = np.arange(len(ranks))
    columns = {
        ROW_ID: [f"row {row}" for row in rows],
        SPAN: ["2021-Q2"] * len(rows),
        QUERY_KEY: rows,
        GROUP: rows,
        COMPETITORS: np.full(len(rows), 1000),
        ITEM_ID: [f"item {row}" for row in rows],
        UNSEEN: np.zeros(len(rows), dtype=bool),
        PAIR: np.ones(len(rows), dtype=bool),
        LABEL_CLASS: (rows % 2).astype(np.int8),
        rank_of(Role.challenger): np.asarray(ranks, dtype=np.int32),
    }
    if probabilities is not None:
        columns[probability_of(Role.challenger)] = np.asarray(probabilities, dtype=np.float32)
        columns[predicted_of(Role.challenger)] = (np.asarray(probabilities) >= 0.5).astype(np.int8)
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out)
    store.write(key, out.getvalue())
    return key


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
