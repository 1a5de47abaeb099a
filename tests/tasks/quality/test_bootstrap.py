from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.stats

from tasks.quality.bootstrap import Answers, draw, measure, rows_needed
from tasks.quality.label_metrics import LABEL
from tasks.quality.row_metrics import CLASSIFICATION, NAMED

FORMULAS: dict[str, Callable[..., float | None]] = {**CLASSIFICATION, **LABEL}
ROWS = 150


def answers(metric: str, groups: np.ndarray | None = None) -> Answers:
    """A challenger that is a little better than its baseline on the same rows."""
    random = np.random.default_rng(3)
    hard = random.random(ROWS)
    classes = (random.random(ROWS) < 0.4).astype(np.int64)
    if metric in LABEL:
        classes = random.integers(0, 4, ROWS).astype(np.float64)
        values = tuple(
            np.clip(np.rint(classes + (1.5 - skill) * random.normal(size=ROWS)), 0, 3) for skill in (0.5, 0.3)
        )
    elif metric in CLASSIFICATION:
        values = tuple(np.clip(0.5 * classes + (1 - skill) * random.random(ROWS), 0, 1) for skill in (0.2, 0.1))
        values = tuple((each >= 0.5).astype(float) for each in values) if metric in NAMED else values
    elif metric == "recall@10":
        values = tuple((hard + 0.3 * random.random(ROWS) < skill).astype(float) for skill in (0.7, 0.6))
    else:
        values = tuple(hard + 0.3 * random.random(ROWS) - skill for skill in (0.1, 0.0))
    return Answers(metric, np.arange(ROWS) if groups is None else groups, classes, values)


def of_rows(made: Answers) -> Callable[..., Any]:
    """The difference of the metric on rows by their places: an implementation of its own, for scipy."""

    def difference(places: np.ndarray) -> float:
        rows = places.astype(int)
        one, other = (
            FORMULAS[made.metric](made.truth[rows], values[rows]) if made.metric in FORMULAS else values[rows].mean()
            for values in made.values
        )
        assert one is not None
        assert other is not None
        return float(one - other)

    return difference


@pytest.mark.parametrize("metric", ["recall@10", "loss", "accuracy", "macro_f1", "auc", *LABEL])
def test_the_interval_of_a_difference_agrees_with_scipy(metric: str) -> None:
    made = answers(metric)
    drawn = draw(made, 4000, (1,))
    ours = np.quantile(drawn[0] - drawn[1], [0.05, 0.95])
    theirs = scipy.stats.bootstrap(
        (np.arange(ROWS),), of_rows(made), n_resamples=2000, confidence_level=0.9, method="percentile",
        vectorized=False, rng=np.random.default_rng(2),
    )  # fmt: skip
    # The end of an interval of 2,000 draws is off by about 4.7 % of the standard error; five times that is allowed.
    slack = 0.24 * float(theirs.standard_error)
    assert ours == pytest.approx([theirs.confidence_interval.low, theirs.confidence_interval.high], abs=slack)
    value, baseline = measure(made)
    assert of_rows(made)(np.arange(ROWS)) == pytest.approx(value - baseline)
    assert ours[0] < value - baseline < ours[1]


@pytest.mark.parametrize("metric", ["recall@10", "macro_f1", "auc", "multiclass_macro_f1", "pearson"])
def test_rows_with_one_query_are_drawn_together(metric: str) -> None:
    made = answers(metric)
    twice = Answers(metric, np.tile(made.groups, 2), np.tile(made.truth, 2), tuple(np.tile(v, 2) for v in made.values))
    assert draw(twice, 50, (1,)) == pytest.approx(draw(made, 50, (1,))), "twice the rows, but not twice the evidence"


def test_the_same_seed_gives_the_same_draws_and_another_gives_others() -> None:
    made = answers("loss")
    assert (draw(made, 20, (1, 2)) == draw(made, 20, (1, 2))).all()
    assert (draw(made, 20, (1, 2)) != draw(made, 20, (1, 3))).any()


def test_very_many_different_rows_are_drawn_too() -> None:
    values = np.random.default_rng(0).normal(size=5000)
    drawn = draw(Answers("loss", np.arange(5000), np.zeros(5000, dtype=np.int64), (values,)), 300, (1,))
    assert drawn.shape == (1, 300)
    assert drawn.std() == pytest.approx(values.std() / 5000**0.5, rel=0.2)


def test_rows_needed_by_hand() -> None:
    # (1.6449 + 0.8416) standard errors of 0.01 must fit into 0.01: 2.4865 squared times as many rows.
    assert rows_needed(500, 0.01, -0.01, 0.95) == 3092
    assert rows_needed(500, 0.0, 0.01, 0.95) is None
    assert rows_needed(500, 0.01, 0.0, 0.95) is None
