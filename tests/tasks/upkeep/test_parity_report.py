import math

import pytest

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import CodeError, DataError
from tasks.upkeep.parity_report import ParityReport, compare, percent, relative_difference, save_report, worst_by_metric
from tests.support.workspace.trainings import CURVE, LOSSES, Curve, changed, side


def compared(right: Curve = CURVE, losses: Curve = LOSSES) -> ParityReport:
    return compare("main", side("cpu"), side("xla", right, losses))


def test_equal_curves_agree():
    report = compared()
    assert report.passed
    assert report.largest.relative_difference == 0
    assert report.sentence.startswith("cpu and xla agree on span 2021-Q2: ")
    assert [(p.step, p.metric) for p in report.points] == [(s, m) for s in (0, 20, 40) for m in ("recall@10", "auc")]
    assert len(report.losses) == 16


@pytest.mark.parametrize(
    ("value", "passed"),
    [(0.6256, True), (0.62437501, True), (0.62563, False), (0.6257, False), (0.62, False), (math.nan, False)],
)
def test_a_difference_of_a_thousandth_in_either_direction_fails(value: float, passed: bool):
    report = compared(changed(CURVE, 20, "auc", value))
    assert report.passed is passed
    assert (report.largest.step, report.largest.metric) == (20, "auc")
    assert (report.largest.left, report.largest.right) == pytest.approx((0.625, value), nan_ok=True)


def test_a_refusal_says_where_and_how_much():
    report = compared(changed(CURVE, 40, "recall@10", 0.495))
    assert "do not agree" in report.sentence
    assert "1 % (recall@10 at step 40); below 0.1 % is required" in report.sentence


def test_losses_are_reported_but_not_gated():
    report = compared(losses=changed(LOSSES, 30, "contrastive", 1.0))
    assert report.passed
    assert report.largest_loss is not None
    assert (report.largest_loss.step, report.largest_loss.metric) == (30, "contrastive")
    assert report.largest_loss.relative_difference == pytest.approx(1 / 3)
    assert compare("main", side("cpu", losses={}), side("xla", losses={})).largest_loss is None


@pytest.mark.parametrize(
    ("right", "message"),
    [
        ({0: CURVE[0], 40: CURVE[40]}, "the left side has a holdout evaluation at step 20, but the right side"),
        (CURVE | {60: CURVE[40]}, "the right side has a holdout evaluation at step 60, but the left side has none"),
        (CURVE | {20: {"auc": 0.625}}, "the holdout evaluation at step 20 has recall@10 on the left side, but not on"),
        (changed(CURVE, 40, "mrr@10", 0.1), "the holdout evaluation at step 40 has mrr@10 on the right side, but not"),
    ],
)
def test_curves_with_other_steps_or_metrics_are_refused(right: Curve, message: str):
    with pytest.raises(CodeError) as error:
        compared(right)
    assert str(error.value).startswith(message)


def test_losses_with_other_steps_are_refused():
    with pytest.raises(CodeError, match="the left side has a loss at step 40, but the right side has none"):
        compared(losses={step: metrics for step, metrics in LOSSES.items() if step < 40})


def test_a_comparison_needs_a_holdout():
    with pytest.raises(DataError, match=r"span 2021-Q2: no row is held out.*evaluate\.holdout_share"):
        compare("main", side("cpu", {}), side("xla", {}))


def test_the_report_names_both_sides_and_the_start():
    report = compared()
    assert (report.left.accelerator, report.right.accelerator) == ("cpu", "xla")
    assert (report.left.run_key, report.right.run_key) == ("key-of-cpu", "key-of-xla")
    assert (report.left.device, report.left.precision, report.left.workers) == ("cpu", "fp32", 1)
    assert report.parent is not None
    assert (report.lineage, report.parent.step) == ("main", 10)
    assert compare("main", side("xla"), side("cpu")).key != report.key


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


def test_each_metric_has_its_worst_point_or_the_last_of_equal_ones():
    report = compared(changed(CURVE, 20, "auc", 0.6))
    assert [(p.metric, p.step) for p in worst_by_metric(report.points)] == [("recall@10", 40), ("auc", 20)]


@pytest.mark.parametrize("value", [0.75, 0.7, math.nan])
def test_a_report_with_any_number_is_read_as_written(tmp_path, value: float):
    store, report = DirectoryStore(tmp_path), compared(changed(CURVE, 40, "auc", value))
    save_report(store, report, b"<svg/>")
    assert store.list("parity") == [f"parity/{report.key}/curves.svg", f"parity/{report.key}/report.json"]
    assert store.read(report.plot) == b"<svg/>"
    again = ParityReport.model_validate_json(store.read(f"{report.prefix}/report.json"))
    assert again.to_json() == report.to_json()
    assert again.largest.relative_difference == report.largest.relative_difference
