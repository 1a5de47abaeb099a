"""The rows that a gate judges: the whole holdout, a span or a slice of it, or the golden set."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from configs.schema.gates import EACH, NEWEST, GateConfig
from tasks.foundation.errors import ConfigError
from tasks.quality.bootstrap import truths
from tasks.quality.label_metrics import LABEL
from tasks.quality.row_metrics import CLASSIFICATION
from tasks.quality.row_results import RowResults


class Part(NamedTuple):
    """A named part of the rows; the name of all rows is empty."""

    where: str
    rows: np.ndarray  # bool (rows of the file,)


def counting(rows: RowResults, metric: str) -> np.ndarray:
    """Return a mask of the rows that count for a metric, bool (rows of the file,): rows with a label, or the pairs."""
    if metric in LABEL:
        return ~np.isnan(truths(rows, metric))
    return rows.label_class >= 0 if metric in CLASSIFICATION else rows.pair


def parts_of(rows: RowResults, gate: GateConfig, newest: str, min_rows: int) -> list[Part]:
    """Return the parts that a gate judges separately. A part that the gate names may be empty.

    Args:
        newest: the newest span of the run.
        min_rows: fewest counting rows of a part, if the gate judges each span or value.

    Raises:
        ConfigError: the rows have no such column; lists the existing ones.
    """
    counts = counting(rows, gate.metric)
    if gate.rows == "golden":
        return [Part("the golden set", rows.golden & counts)]
    holdout = ~rows.golden & counts
    spans, slices = _spans(rows, gate, newest, holdout), _slices(rows, gate, holdout)
    found = [
        Part(", ".join(filter(None, (span.where, piece.where))), span.rows & piece.rows)
        for span, piece in itertools.product(spans, slices)
    ]
    each = gate.span == EACH or (gate.slice is not None and gate.slice_value is None)
    return [part for part in found if part.rows.sum() >= min_rows] if each else found


def slices_of(rows: RowResults, column: str) -> list[Part]:
    """Return the holdout rows of each value of a column, in alphabetical order.

    Raises:
        ConfigError: the rows have no such column; lists the existing ones.
    """
    return [Part(value, ~rows.golden & (_column(rows, column) == value)) for value in _values(rows, column)]


def _spans(rows: RowResults, gate: GateConfig, newest: str, holdout: np.ndarray) -> Sequence[Part]:
    if gate.span is None:
        return [Part("", holdout)]
    names = sorted(set(rows.span[holdout])) if gate.span == EACH else [newest if gate.span == NEWEST else gate.span]
    return [Part(f"span {name}", holdout & (rows.span == name)) for name in names]


def _slices(rows: RowResults, gate: GateConfig, holdout: np.ndarray) -> Sequence[Part]:
    column = gate.slice_column
    if column is None:
        return [Part("", holdout)]
    values = _values(rows, column) if gate.slice_value is None else [gate.slice_value]
    return [Part(f"{column}={value}", holdout & (_column(rows, column) == value)) for value in values]


def _values(rows: RowResults, column: str) -> list[str]:
    return sorted(set(_column(rows, column)[~rows.golden]))


def _column(rows: RowResults, column: str) -> np.ndarray:
    if column not in rows.columns:
        known = ", ".join(rows.columns) or "none"
        raise ConfigError(f"the evaluated rows have no column {column!r} to slice by; they have: {known}")
    return rows.columns[column]
