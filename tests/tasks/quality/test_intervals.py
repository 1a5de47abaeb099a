from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.special
import scipy.stats

from tasks.quality.intervals import (
    Error,
    Term,
    error_of,
    estimate,
    influences,
    interval_of,
    rows_needed,
    smallest_gap,
    student,
)
from tasks.quality.label_metrics import CALIBRATION, LABEL
from tasks.quality.row_metrics import CLASSIFICATION, NAMED
from tasks.quality.selection import Answers, measure

FORMULAS: dict[str, Callable[..., float | None]] = {**CLASSIFICATION, **LABEL}
ROWS = 150


def answers(metric: str) -> Answers:
    """A challenger that is a little better than its baseline on the same rows, of different queries and items."""
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
    return Answers(metric, np.arange(ROWS), np.arange(ROWS), classes, values)


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


def bounds(made: Answers, confidence: float = 0.95) -> tuple[float, float]:
    difference = Term(made, (1.0, -1.0))
    return error_of(difference).bounds(estimate(difference), confidence)


def drawn_calibration(random: np.random.Generator, rows: int, *shifts: float) -> Answers:
    """Rows of models whose logits are too high by these shifts; 0: a calibrated one."""
    logits = 1.5 * random.normal(size=rows) - 0.8
    truth = (random.random(rows) < scipy.special.expit(logits)).astype(np.float64)
    says = tuple(scipy.special.expit(logits + each) for each in shifts)
    return Answers("calibration_error", np.arange(rows), np.arange(rows), truth, says)


def repeated(made: Answers, groups: np.ndarray, items: np.ndarray) -> Answers:
    """Each row twice."""
    return Answers(made.metric, groups, items, np.tile(made.truth, 2), tuple(np.tile(v, 2) for v in made.values))


METRICS = ["recall@10", "loss", "accuracy", "macro_f1", "auc", *CALIBRATION, *LABEL]


@pytest.mark.parametrize("metric", METRICS)
def test_the_interval_of_a_difference_agrees_with_scipy(metric: str) -> None:
    made = answers(metric)
    ours = bounds(made)
    theirs = scipy.stats.bootstrap(
        (np.arange(ROWS),), of_rows(made), n_resamples=2000, confidence_level=0.9, method="BCa",
        vectorized=False, rng=np.random.default_rng(2),
    )  # fmt: skip
    # An end of 2,000 draws is off by about 4.7 % of the standard error, and percentiles ignore degrees and skew.
    slack = 0.3 * float(theirs.standard_error)
    ends = theirs.confidence_interval
    if metric == "calibration_error":  # its sizes are above 0 by chance in each draw too, so draws are too sure
        assert ours[0] < ends.low + slack
        assert ours[1] > ends.high - slack
        assert np.ptp(ours) < 2 * np.ptp(ends)
    else:
        assert ours == pytest.approx([ends.low, ends.high], abs=slack)
    value, baseline = measure(made)
    assert of_rows(made)(np.arange(ROWS)) == pytest.approx(value - baseline)
    assert ours[0] < value - baseline < ours[1]


@pytest.mark.parametrize("metric", METRICS)
def test_an_influence_is_the_change_by_one_row_more(metric: str) -> None:
    made = answers(metric)
    found = influences(made)
    assert found.sum(axis=1) == pytest.approx([0, 0], abs=1e-9)
    difference, whole = of_rows(made), np.arange(ROWS)
    more = [difference(np.append(whole, row)) - difference(whole) for row in whole]
    assert found[0] - found[1] == pytest.approx(more, abs=0.04 * np.abs(more).max())


@pytest.mark.parametrize("metric", METRICS)
def test_rows_with_one_query_or_about_one_item_say_no_more_than_one(metric: str) -> None:
    made, twice, different = answers(metric), np.tile(np.arange(ROWS), 2), np.arange(2 * ROWS)
    assert bounds(repeated(made, twice, twice)) == pytest.approx(bounds(made))
    assert bounds(repeated(made, twice, different)) == pytest.approx(bounds(made))
    assert bounds(repeated(made, different, twice)) == pytest.approx(bounds(made), abs=0.03 * np.ptp(bounds(made)))
    assert np.ptp(bounds(repeated(made, different, different))) < 0.75 * np.ptp(bounds(made))


def test_queries_and_items_that_cross_count_both() -> None:
    """Rows of 30 queries, each about all of 20 items; queries and items have an effect of their own."""
    random = np.random.default_rng(4)
    query, item = (each.reshape(-1) for each in np.mgrid[:30, :20])
    spread = []
    for effects in ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0)):
        own = effects[0] * random.standard_normal(30)[query] + effects[1] * random.standard_normal(20)[item]
        made = Answers("loss", query, item, np.zeros(600), (own + 0.1 * random.standard_normal(600),))
        spread.append(error_of(Term(made, (1.0,))).standard_error)
    assert spread[0] == pytest.approx(30**-0.5, rel=0.3)
    assert spread[1] == pytest.approx(20**-0.5, rel=0.3)
    assert spread[2] == pytest.approx((1 / 30 + 1 / 20) ** 0.5, rel=0.3)


@pytest.mark.parametrize("rows", [20, 100, 500])
@pytest.mark.parametrize("lost", [0, 1, 5])
def test_a_model_that_only_loses_has_the_exact_binomial_bound(rows: int, lost: int) -> None:
    """Of no row that differs, too: a bootstrap gives an interval without width."""
    rest = np.ones(rows)
    made = Answers("recall@10", np.arange(rows), np.arange(rows), rest, (np.arange(rows) >= lost, rest))
    exact = -scipy.stats.beta.ppf(0.95, lost + 1, rows - lost)
    assert bounds(made)[0] == pytest.approx(exact, rel=0.14)


def test_exchanging_the_models_exchanges_the_bounds() -> None:
    made = answers("recall@10")
    low, high = bounds(made)
    assert bounds(made._replace(values=made.values[::-1])) == (-high, -low)


def test_terms_with_the_same_queries_hang_together() -> None:
    made = answers("loss")
    none = error_of(Term(made, (1.0, 0.0)), Term(made, (-1.0, 0.0)))
    assert none.standard_error == pytest.approx(0, abs=2 * np.ptp(made.values[0]) / ROWS)
    apart = made._replace(groups=made.groups + ROWS, items=made.items + ROWS)
    alone = error_of(Term(made, (1.0, 0.0))).standard_error
    assert error_of(Term(made, (1.0, 0.0)), Term(apart, (-1.0, 0.0))).standard_error == pytest.approx(alone * 2**0.5)


def test_quantiles_of_students_distribution_agree_with_scipy() -> None:
    for degrees in (2, 2.01, 2.5, 3.7, 4.9, 5, 20.5, 1e4):
        for confidence in (0.9, 0.95, 0.999, 0.9999):
            assert student(confidence, degrees) == pytest.approx(scipy.stats.t.ppf(confidence, degrees), rel=1e-3)


def test_rows_needed_by_hand() -> None:
    # (1.6449 + 0.8416) standard errors of 0.01 must fit into 0.01: 2.4865 squared times as many rows.
    sure = Error(0.01, 1e9)
    assert rows_needed(500, sure, -0.02, -0.01, 0.95) == pytest.approx(3092, abs=1)
    assert rows_needed(500, Error(0.0, 2.0), 0.01, 0.0, 0.95) is None
    assert rows_needed(500, sure, 0.02, 0.02, 0.95) is None
    few = Error(0.01, 6.0)
    assert rows_needed(868, few, smallest_gap(few, 0.95), 0.0, 0.95) == pytest.approx(868, abs=1)


@pytest.mark.parametrize(
    ("shifts", "limit", "rows"),
    [((0.0,), 0.05, 300), ((0.0, 0.2), 0.01, 300), ((0.1, 0.0), 0.03, 500), ((0.4, 0.0), 0.02, 1000)],
)
def test_the_rows_that_a_calibration_error_needs_decide(shifts: tuple[float, ...], limit: float, rows: int) -> None:
    """Chance was taken for a part of the difference that stays, and the rows asked for decided 16 to 67 of 100."""
    random, weights = np.random.default_rng(5), (1.0, -1.0)[: len(shifts)]

    def drawn(count: int) -> Term:
        return Term(drawn_calibration(random, count, *shifts), weights)

    usual = sorted((drawn(rows) for _ in range(41)), key=estimate)[20]
    needed = rows_needed(rows, error_of(usual), estimate(usual), limit, 0.95)
    assert needed is not None
    ends = [error_of(term).bounds(estimate(term), 0.95) for term in (drawn(needed) for _ in range(60))]
    assert np.mean([low > limit or high < limit for low, high in ends]) >= 0.8
    assert rows_needed(rows, error_of(usual), estimate(usual), estimate(usual) - error_of(usual).excess, 0.95) is None


def test_an_interval_of_a_share_ends_at_1() -> None:
    rows = np.arange(64)
    low, high = interval_of(Answers("recall@10", rows, rows, rows, ((rows < 56).astype(float),)))
    assert low == pytest.approx(0.772, abs=0.02), "R: prop.test(56, 64, correct = FALSE) gives 0.772 to 0.935"
    assert 0.935 < high < 0.98
    low, high = interval_of(Answers("recall@10", rows, rows, rows, (np.ones(64),)))
    assert (low, high) == (pytest.approx(1 - 3.7 / 64, abs=0.03), 1.0)


@pytest.mark.parametrize(("shift", "rows"), [(0.0, 300), (0.0, 1000), (0.2, 100), (0.4, 300)])
def test_a_calibration_error_is_surely_above_the_true_one_in_one_case_of_twenty(shift: float, rows: int) -> None:
    """By chance alone 100 rows of a calibrated model have an error of 0.1; the true one is known by many rows."""
    random = np.random.default_rng(11)

    def drawn(count: int) -> Answers:
        logits = 1.5 * random.normal(size=count) - 0.8
        truth = (random.random(count) < scipy.special.expit(logits)).astype(np.float64)
        return Answers(
            "calibration_error", np.arange(count), np.arange(count), truth, (scipy.special.expit(logits + shift),)
        )

    (true,) = measure(drawn(200_000))
    lows, highs = np.transpose(
        [error_of(Term(some, (1.0,))).bounds(measure(some)[0], 0.95) for some in (drawn(rows) for _ in range(200))]
    )
    assert (lows > true).mean() <= 0.06
    assert (highs < true).mean() <= 0.06


@pytest.mark.parametrize("rows", [300, 1000])
@pytest.mark.parametrize(
    ("shift", "other"), [(0.1, 0.0), (0.4, 0.0), (0.0, 0.2), (0.4, 0.2), (0.0, 0.0), (1.0, 0.0), (0.0, 0.8)]
)
def test_a_difference_of_calibration_errors_is_beyond_its_bounds_in_one_case_of_twenty(
    shift: float, other: float, rows: int
) -> None:
    """Of a calibrated model all of the error is chance: beside another one up to 32 of 100 were beyond."""
    random = np.random.default_rng(7)

    def drawn(count: int) -> Term:
        return Term(drawn_calibration(random, count, shift, other), (1.0, -1.0))

    true = estimate(drawn(200_000))
    bounds = [error_of(some).bounds(estimate(some), 0.95) for some in (drawn(rows) for _ in range(200))]
    assert np.mean([low > true for low, _ in bounds]) <= 0.05
    assert np.mean([high < true for _, high in bounds]) <= 0.05


def test_a_model_with_a_clear_calibration_error_is_surely_beyond_a_calibrated_one_on_many_rows() -> None:
    """Its lower bound never rose above 0, so that no gate that allows a rise could fail, on any number of rows."""
    term = Term(drawn_calibration(np.random.default_rng(7), 3000, 1.0, 0.0), (1.0, -1.0))
    low, _ = error_of(term).bounds(estimate(term), 0.95)
    assert 0.05 < low < estimate(term)
    back = term._replace(weights=(-1.0, 1.0))
    assert error_of(back).bounds(-estimate(term), 0.95)[1] == pytest.approx(-low)


def test_two_models_that_answer_alike_have_one_calibration_error() -> None:
    """Else no gate on few rows could say so of a model that a refresh or a later training hardly changed."""
    same = answers("calibration_error")
    nearly = same._replace(values=(same.values[0], np.clip(same.values[0] + 1e-4, 0, 1)))
    low, high = error_of(Term(nearly, (1.0, -1.0))).bounds(0.0, 0.95)
    assert high - low < 8 / len(same.truth)


def test_the_excess_of_a_calibration_error_is_none_of_the_difference_of_equal_models() -> None:
    same = answers("calibration_error")
    twice = same._replace(values=(same.values[0], same.values[0]))
    assert error_of(Term(twice, (1.0, -1.0))).excess == 0.0
    assert error_of(Term(same._replace(values=same.values[:1]), (1.0,))).excess > 0.0
