"""The answers of one training to each measured row, kept in a file, and how sure differences between trainings are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tasks.contracts.evaluation import Role
from tasks.foundation.records import Record
from tasks.quality.intervals import Term, error_of, estimate
from tasks.quality.row_metrics import CLASSIFICATION, NAMED
from tasks.quality.row_metrics import RANKING as RANKING_METRICS
from tasks.quality.row_results import RowResults
from tasks.quality.selection import Answers, measure

CONFIDENCE = 0.95


class MeasuredRows(Record):
    """One entry for each row in every tuple, in the order of `row_id`."""

    config_sha256: str
    seconds: float
    row_id: tuple[str, ...]
    group: tuple[int, ...]
    item_id: tuple[str, ...]
    pair: tuple[bool, ...]
    rank: tuple[int, ...]
    label_class: tuple[int, ...]
    probability: tuple[float, ...] | None
    predicted: tuple[int, ...] | None  # the class that the model names


class Difference(Record):
    """A metric's means over the seeds: of a variant, and of it less the base, with the bounds of an interval."""

    value: float
    difference: float
    low: float
    high: float


def measured_rows(results: RowResults, among: np.ndarray, config_sha256: str, seconds: float) -> MeasuredRows:
    """Return the challenger's answers to the rows where the bool array `among` is true, without the golden set."""
    rows = np.flatnonzero(among & ~results.golden)
    rows = rows[np.argsort(results.row_id[rows], kind="stable")]
    probabilities, predicted = (each.get(Role.challenger) for each in (results.probabilities, results.predicted))
    return MeasuredRows(
        config_sha256=config_sha256,
        seconds=seconds,
        row_id=tuple(results.row_id[rows].tolist()),
        group=tuple(results.group[rows].tolist()),
        item_id=tuple(results.item_id[rows].tolist()),
        pair=tuple(results.pair[rows].tolist()),
        rank=tuple(results.ranks[Role.challenger][rows].tolist()),
        label_class=tuple(results.label_class[rows].tolist()),
        probability=None if probabilities is None else tuple(probabilities[rows].tolist()),
        predicted=None if predicted is None else tuple(predicted[rows].tolist()),
    )


def compare(metric: str, base: Sequence[MeasuredRows], variant: Sequence[MeasuredRows]) -> Difference | None:
    """Return the metric of a variant next to the base, trained with the same seeds; None if one has not the metric.

    The interval is about rows and not about seeds.

    Raises:
        ValueError: they were measured on other rows.
    """
    both = (*base, *variant)
    if any(each.row_id != base[0].row_id for each in both):
        raise ValueError(
            "the trainings were measured on other rows; delete the results of one data set and start again"
        )
    if metric in CLASSIFICATION and any(each.probability is None for each in both):
        return None
    answers = _answers(metric, both)
    term = Term(answers, (*[-1 / len(base)] * len(base), *[1 / len(variant)] * len(variant)))
    low, high = error_of(term).bounds(estimate(term), (1 + CONFIDENCE) / 2)
    value = float(np.mean(measure(answers)[len(base) :]))
    return Difference(value=value, difference=estimate(term), low=low, high=high)


def _answers(metric: str, trainings: Sequence[MeasuredRows]) -> Answers:
    classes, queries, items = (np.array(getattr(trainings[0], name)) for name in ("label_class", "group", "item_id"))
    if metric in CLASSIFICATION:
        known = classes >= 0
        said = (each.predicted if metric in NAMED else each.probability for each in trainings)
        values = tuple(np.array(each, dtype=np.float64)[known] for each in said)
    else:
        known = np.array(trainings[0].pair)
        formula = RANKING_METRICS[metric]
        values = tuple(np.asarray(formula(np.array(each.rank)[known]), dtype=np.float64) for each in trainings)
    return Answers(metric, queries[known], items[known], classes[known], values)
