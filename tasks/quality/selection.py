"""The rows that a gate judges: the whole holdout, a span or a slice of it, or the golden set."""

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from configs.schema.gates import EACH, METRICS, NEWEST, GateConfig, least_competitors
from tasks.contracts.evaluation import Role
from tasks.foundation.errors import ConfigError
from tasks.quality.label_metrics import LABEL
from tasks.quality.row_metrics import CLASSIFICATION, LIKELIHOOD, NAMED, RANKING
from tasks.quality.row_results import RowResults


class Answers(NamedTuple):
    """The rows that count for one metric, with the results of one or two models.

    `values` are per-row metrics for ranking and loss, probabilities of class 1 for AUC, log loss and calibration error,
    predicted classes for other classification metrics, and predictions for metrics of labels.
    """

    metric: str
    groups: np.ndarray  # int64 (rows,): the row's query, or its user
    items: np.ndarray  # (rows,): the row's item, as numbers or texts
    truth: np.ndarray  # float64 (rows,): class, 0 or 1, or label; read only for metrics of classes or labels
    values: tuple[np.ndarray, ...]  # float64 (rows,) of each model: the challenger, then the baseline, if any


def answers_of(
    rows: RowResults,
    metric: str,
    among: np.ndarray,
    roles: Sequence[Role],
    baseline: Role | None = None,
    width: int | None = None,
) -> Answers:
    """Return the answers of some models, in the order of `roles`. Raises KeyError: a model was not measured.

    Args:
        among: bool (all rows,), the rows that count.
        baseline: as in `row_values`.
        width: likewise.
    """
    values = tuple(row_values(rows, metric, each, baseline, width)[among] for each in roles)
    return Answers(metric, rows.group[among], rows.item_id[among], truths(rows, metric)[among], values)


def row_values(
    rows: RowResults, metric: str, role: Role, baseline: Role | None = None, width: int | None = None
) -> np.ndarray:
    """Return the `Answers.values` of one model, float64 (rows,). Raises KeyError: it was not measured.

    Args:
        baseline: the model to compare with, on the items that both hold; None: no comparison.
        width: dimensions of the truncated vectors for a ranking metric; None: all.
    """
    if metric in RANKING:
        ranks = rows.ranks_against(role, baseline) if width is None else rows.narrow_ranks[width][role]
        return np.asarray(RANKING[metric](ranks), dtype=np.float64)
    if metric in LIKELIHOOD:
        return np.asarray(LIKELIHOOD[metric](rows.losses[role]), dtype=np.float64)
    if metric in LABEL:
        return rows.says[METRICS[metric].head or ""][role].astype(np.float64)
    return (rows.predicted if metric in NAMED else rows.probabilities)[role].astype(np.float64)


def truths(rows: RowResults, metric: str) -> np.ndarray:
    """Return `Answers.truth`, float64 (rows,). Raises KeyError: the rows have no such label."""
    labels = rows.labels[METRICS[metric].head or ""] if metric in LABEL else rows.label_class
    return labels.astype(np.float64)


def measure(answers: Answers) -> tuple[float, ...]:
    """Return the metric of each model over all rows; NaN if undefined, as without rows."""
    if not len(answers.groups):
        return (float("nan"),) * len(answers.values)
    if answers.metric in LABEL:
        return tuple(LABEL[answers.metric](answers.truth, values) for values in answers.values)
    if answers.metric in CLASSIFICATION:
        found = (CLASSIFICATION[answers.metric](answers.truth, values) for values in answers.values)
        return tuple(float("nan") if value is None else value for value in found)
    return tuple(float(values.mean()) for values in answers.values)


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
