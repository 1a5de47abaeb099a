"""The rows that a gate judges: the whole holdout, a span or a slice of it, or the golden set."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from configs.schema.gates import EACH, NEWEST, GateConfig
from configs.schema.metrics import least_competitors
from tasks.contracts.evaluation import Role
from tasks.foundation.errors import ConfigError
from tasks.quality.answers import truths
from tasks.quality.label_metrics import LABEL
from tasks.quality.row_metrics import CLASSIFICATION, LIKELIHOOD
from tasks.quality.row_results import RowResults


class Part(NamedTuple):
    """A named part of the rows; the name of all rows is empty."""

    where: str
    rows: np.ndarray  # bool (rows of the file,)
    alone: int = 0  # other rows of the part: pairs whose own item has too few competitors for the metric


def counting(
    rows: RowResults, metric: str, role: Role = Role.challenger, baseline: Role | None = None, width: int | None = None
) -> np.ndarray:
    """Return a mask of the rows that count for a metric, bool (rows of the file,).

    These are the rows with a label, or the pairs whose own item has enough competitors.

    Args:
        role, baseline, width: as for `row_values`: they say which items compete.
    """
    if metric in LABEL:
        return ~np.isnan(truths(rows, metric))
    if metric in CLASSIFICATION:
        return rows.label_class >= 0
    in_corpus = metric in LIKELIHOOD or width is not None
    competitors = rows.competitors if in_corpus else rows.competitors_against(role, baseline)
    return rows.pair & (competitors >= least_competitors(metric))


def counting_for(rows: RowResults, gate: GateConfig) -> np.ndarray:
    """Return a mask of the rows that count for a gate, bool (rows of the file,)."""
    role = Role(gate.of)
    baseline = Role(gate.baseline) if gate.baseline != "none" and role is Role.challenger else None
    return counting(rows, gate.metric, role, baseline, gate.width)


def parts_of(rows: RowResults, gate: GateConfig, newest: str, min_rows: int, unseen_alone: bool = False) -> list[Part]:
    """Return the parts that a gate judges separately. A part that the gate names may be empty.

    Args:
        newest: the newest span of the run.
        min_rows: fewest counting rows of a part, if the gate judges each span or value.
        unseen_alone: the holdout has unseen queries alone, by its rule.

    Raises:
        ConfigError: the rows have no such column; lists the existing ones.
    """
    counts = counting_for(rows, gate)
    alone = rows.pair & ~counts if least_competitors(gate.metric) else np.zeros_like(counts)

    def part(where: str, among: np.ndarray) -> Part:
        return Part(where, among & counts, int((among & alone).sum()))

    if gate.rows == "golden":
        return [part("the golden set", rows.golden)]
    holdout = ~rows.golden & (counts | alone)
    spans, slices = _spans(rows, gate, newest, holdout), _slices(rows, gate, holdout)
    found = [
        Part(", ".join(filter(None, (span.where, piece.where))), span.rows & piece.rows)
        for span, piece in itertools.product(spans, slices)
    ]
    divided = gate.span == EACH or (gate.slice is not None and gate.slice_value is None)
    large = [each for each in found if each.rows.sum() >= min_rows]
    return [
        part(", ".join(filter(None, (each.where, asked.where))), each.rows & asked.rows)
        for each, asked in itertools.product(large if divided else found, _queries(rows, gate, unseen_alone))
    ]


def slices_of(rows: RowResults, column: str) -> list[Part]:
    """Return the holdout rows of each value of a column, in alphabetical order.

    Raises:
        ConfigError: the rows have no such column; lists the existing ones.
    """
    return [Part(value, ~rows.golden & (_column(rows, column) == value)) for value in _values(rows, column)]


def _queries(rows: RowResults, gate: GateConfig, unseen_alone: bool) -> Sequence[Part]:
    """Return the rows of the queries that a gate judges, unseen ones first; either part may be empty."""
    if gate.queries == "all":
        return [Part("", np.ones(len(rows.unseen), dtype=bool))]
    parts = {"unseen": Part("unseen queries", rows.unseen), "seen": Part("seen queries", ~rows.unseen)}
    each = ["unseen"] if unseen_alone else list(parts)
    return [parts[name] for name in (each if gate.queries == "each" else [gate.queries])]


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
