"""Answers of a training to its holdout, as train keeps them."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from tasks.contracts.evaluation import (
    COMPETITORS,
    GROUP,
    ITEM_ID,
    LABEL_CLASS,
    PAIR,
    QUERY_KEY,
    ROW_ID,
    SPAN,
    UNSEEN,
    Role,
    predicted_of,
    probability_of,
    rank_of,
)


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
