"""Curves of two sides compared step by step."""

import math

import numpy as np
import pytest

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import CodeError, DataError
from tasks.laboratory.equivalence import Finding, percent, relative_difference
from tasks.laboratory.parity_report import ParityReport, compare, save_report, worst_by_metric
from tests.support.measures.results import write_answers
from tests.support.workspace.trainings import CURVE, LOSSES, Curve, changed, side

RANKS = np.where(np.arange(2000) < 1000, 1, 20)  # recall@10 0.5
PROBABILITIES = np.linspace(0, 1, 2000)


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def compared(
    store: DirectoryStore,
    right: Curve = CURVE,
    losses: Curve = LOSSES,
    ranks: np.ndarray = RANKS,
    probabilities: np.ndarray = PROBABILITIES,
) -> ParityReport:
    keys = [
        write_answers(store, "left.parquet", RANKS, PROBABILITIES),
        write_answers(store, "right.parquet", ranks, probabilities),
    ]
    return compare(store, "main", side("cpu", answers=keys[0]), side("xla", right, losses, keys[1]))


def test_the_same_answers_agree(store, golden):
    report = compared(store)
    assert (report.state, report.finding) == ("Agreed", Finding.equal)
    assert [one.same_answers for one in report.qualities] == [True, True]
    assert report.largest.relative_difference == 0
    golden(report.sentence)
    assert [(p.step, p.metric) for p in report.points] == [(s, m) for s in (0, 20, 40) for m in ("recall@10", "auc")]
    assert len(report.losses) == 16


def test_one_metric_that_differs_is_no_agreement_and_says_where(store, golden):
    worse = np.where(np.arange(2000) < 800, 1, 20)
    report = compared(store, changed(CURVE, 40, "recall@10", 0.4), ranks=worse)
    assert (report.state, report.finding) == ("Rejected", Finding.different)
    assert [one.finding for one in report.qualities] == [Finding.different, Finding.equal]
    assert "do not agree" in report.sentence
    golden(report.sentence)


def test_a_few_other_answers_decide_nothing_and_the_rows_that_would_are_named(store):
    """Five lost and five found again: the means are equal, but a difference of 0.1 % may hide."""
    ranks = RANKS.copy()
    ranks[:5], ranks[-5:] = 20, 1
    report = compared(store, ranks=ranks)
    assert report.state == "Undecided"
    (recall, auc) = report.qualities
    assert (recall.finding, recall.difference, auc.finding) == (Finding.undecided, 0.0, Finding.equal)
    assert recall.rows == 2000
    assert recall.rows_needed is not None
    assert recall.rows_needed > 20_000
    assert f"{recall.rows_needed:,} rows" in report.sentence


def test_without_answers_to_rows_one_seed_decides_nothing(store):
    report = compare(store, "main", side("cpu"), side("xla"))
    assert (report.state, report.qualities[0].low) == ("Undecided", None)


def test_a_metric_that_is_no_number_differs(store):
    assert compared(store, changed(CURVE, 40, "auc", math.nan)).state == "Rejected"


def test_losses_are_reported_but_not_gated(store):
    report = compared(store, losses=changed(LOSSES, 30, "contrastive", 1.0))
    assert report.state == "Agreed"
    assert report.largest_loss is not None
    assert (report.largest_loss.step, report.largest_loss.metric) == (30, "contrastive")
    assert report.largest_loss.relative_difference == pytest.approx(1 / 3)
    assert compare(store, "main", side("cpu", losses={}), side("xla", losses={})).largest_loss is None


@pytest.mark.parametrize(
    ("right", "message"),
    [
        ({0: CURVE[0], 40: CURVE[40]}, "the left side has a holdout evaluation at step 20, but the right side"),
        (CURVE | {60: CURVE[40]}, "the right side has a holdout evaluation at step 60, but the left side has none"),
        (CURVE | {20: {"auc": 0.625}}, "the holdout evaluation at step 20 has recall@10 on the left side, but not on"),
        (changed(CURVE, 40, "mrr@10", 0.1), "the holdout evaluation at step 40 has mrr@10 on the right side, but not"),
    ],
)
def test_curves_with_other_steps_or_metrics_are_refused(store, right: Curve, message: str):
    with pytest.raises(CodeError) as error:
        compared(store, right)
    assert str(error.value).startswith(message)


def test_losses_with_other_steps_are_refused(store):
    with pytest.raises(CodeError, match=r"left .*step 40, .*right"):
        compared(store, losses={step: metrics for step, metrics in LOSSES.items() if step < 40})


def test_a_comparison_needs_a_holdout(store):
    with pytest.raises(DataError, match=r"evaluate\.holdout_share"):
        compare(store, "main", side("cpu", {}), side("xla", {}))


def test_the_report_names_both_sides_and_the_start(store):
    report = compared(store)
    assert (report.left.accelerator, report.right.accelerator) == ("cpu", "xla")
    assert (report.left.run_key, report.right.run_key) == ("key-of-cpu", "key-of-xla")
    assert (report.left.device, report.left.precision, report.left.workers) == ("cpu", "fp32", 1)
    assert report.parent is not None
    assert (report.lineage, report.parent.step) == ("main", 10)
    assert compare(store, "main", side("xla"), side("cpu")).key != report.key


@pytest.mark.parametrize(
    ("left", "right", "difference"),
    [(0, 0, 0), (0.5, 0.5, 0), (1, 2, 0.5), (2, 1, 0.5), (0, 1e-9, 1), (-1, 1, 2), (math.nan, 1, math.inf)],
)
def test_the_difference_is_relative_to_the_larger_magnitude(left: float, right: float, difference: float):
    assert relative_difference(left, right) == pytest.approx(difference)


@pytest.mark.parametrize(
    ("share", "text"),
    [(0, "0 %"), (0.001, "0.1 %"), (5.24e-7, "0.000052 %"), (0.0123, "1.2 %"), (1, "100 %"), (math.inf, "infinite")],
)
def test_shares_are_formatted_without_exponents(share: float, text: str):
    assert percent(share) == text


def test_each_metric_has_its_worst_point_or_the_last_of_equal_ones(store):
    report = compared(store, changed(CURVE, 20, "auc", 0.6))
    assert [(p.metric, p.step) for p in worst_by_metric(report.points)] == [("recall@10", 40), ("auc", 20)]


@pytest.mark.parametrize("value", [0.75, 0.7, math.nan])
def test_a_report_with_any_number_is_read_as_written(store, value: float):
    report = compared(store, changed(CURVE, 40, "auc", value))
    save_report(store, report, b"<svg/>")
    assert store.list("parity") == [f"parity/{report.key}/curves.svg", f"parity/{report.key}/report.json"]
    assert store.read(report.plot) == b"<svg/>"
    again = ParityReport.model_validate_json(store.read(f"{report.prefix}/report.json"))
    assert again.to_json() == report.to_json()
    assert again.largest.relative_difference == report.largest.relative_difference
