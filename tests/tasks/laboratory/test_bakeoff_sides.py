"""Bake-offs with workers that do no arithmetic. Each stage is on record with 9.75 s: 8 of work, 1.5 to start."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from configs.load import load_config
from flows.laboratory.train_sides import train
from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import Phases
from tasks.contracts.references import CurvePoint
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import ANSWERS, RESULT
from tasks.foundation.errors import CodeError, FailureClass
from tasks.health import health
from tasks.judging.compare_runs import compare_runs
from tasks.laboratory.bakeoff_report import BakeoffReport, PublishedLine, published_lines
from tasks.laboratory.bakeoff_sides import mean_and_interval, report_bakeoff
from tasks.laboratory.equivalence import Finding
from tasks.laboratory.sides import SideRuns, Trained, plan_sides
from tasks.planning.next_run import plan_run
from tasks.runs import ledger
from tasks.runs.results import read_result
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot
from tasks.validate import validate
from tasks.warmup import warmup
from tests.support.fakes.fake_runner import small_config
from tests.support.fakes.stages import carry_out
from tests.support.measures.results import write_answers

pytestmark = pytest.mark.usefixtures("runner")
DOLLAR_A_SECOND = "cost.dollars_per_worker_hour=3600"
ALIKE = {"cpu": (0.5,), "xla": (0.5,)}  # last values of the metric by side, for each seed

ROWS = 2000

Finals = dict[str, tuple[float, ...]]


def trained(store: DirectoryStore, runs: SideRuns, finals: Finals, start: float = 0.25) -> list[Trained]:
    """Carry out the stages, and give each training a curve of start, its middle and its last value, and answers."""
    validated, warm, found = validate.fn(runs.common), {}, []
    left = {side: list(values) for side, values in finals.items()}
    for run in runs.runs:
        if run.side not in warm:
            warm[run.side] = warmup.fn(run.plan, validated, health.fn(run.plan, validated))
        outcome, last = train.fn(run.plan, validated, warm[run.side]), left[run.side].pop(0)
        first, end = outcome.first_step, outcome.last_step
        values = {first: start, (first + end) // 2: (start + last) / 2, end: last}
        curve = tuple(CurvePoint(step=step, metrics={"recall@10": value}) for step, value in values.items())
        ranks = np.where(np.arange(ROWS) < ROWS * last, 1, 20)
        key = write_answers(store, ANSWERS.key(run=run.plan.run_key, attempt=1), ranks)
        made = outcome.model_copy(update={"curve": curve, "answers_key": key})
        result = read_result(store, run.plan.run_key, Stage.train)
        assert result is not None
        at = RESULT.key(run=run.plan.run_key, stage=Stage.train)
        store.write(at, result.model_copy(update={"outcome": made}).to_json())
        found.append(Trained(run, "fake", made))
    return found


def baked(store: DirectoryStore, finals: Finals, *settings: str, start: float = 0.25) -> BakeoffReport:
    seeds = len(next(iter(finals.values())))
    runs = plan_sides(store, small_config(*settings), "2021-Q1", tuple(finals), seeds)
    return report_bakeoff(store, runs, trained(store, runs, finals, start))


def test_a_side_is_billed_for_health_warmup_and_one_training(store):
    cpu = baked(store, ALIKE, DOLLAR_A_SECOND).sides[0]
    assert cpu.billable_seconds == pytest.approx(3 * 9.75, abs=0.5)
    assert cpu.starting_seconds == pytest.approx(3 * 1.5, abs=0.5)
    assert cpu.dollars == pytest.approx(cpu.billable_seconds)
    assert cpu.dollars_without_start == pytest.approx(cpu.billable_seconds - cpu.starting_seconds)
    assert cpu.iterations_per_second == pytest.approx(100.0 / small_config().train.batch_rows)
    assert cpu.price is not None
    assert cpu.price.says.startswith("$3,600.00/h stated, ")


def test_two_sides_are_compared_row_by_row_as_runs_are(store, golden):
    runs = plan_sides(store, small_config(DOLLAR_A_SECOND), "2021-Q1", ("cpu", "xla"))
    trained(store, runs, {"cpu": (0.5,), "xla": (0.75,)})
    snapshot = Snapshot(store)
    found = compare_runs(store, [(run.side, Run(snapshot, run.plan.run_key)) for run in runs.runs])
    assert [each.key for each in found.settings] == ["accelerator"]
    (pair,) = found.pairs
    golden(pair.notes)
    recall = next(each for each in pair.metrics if each.queries == "all")
    assert (recall.a, recall.b, recall.rows, recall.answer) == (0.5, 0.75, ROWS, "better")
    assert (pair.items, len(pair.wins), pair.wins[0].rank_b) == ("among 1,001 items", 8, 1)
    cpu, xla = found.runs
    assert cpu.target is not None
    assert xla.target is not None
    assert xla.target.seconds == pytest.approx(cpu.target.seconds - 4.0, abs=0.2)
    assert xla.target.dollars == pytest.approx(xla.target.seconds)


def test_more_seeds_do_not_raise_the_bill(store):
    one = baked(store, ALIKE, DOLLAR_A_SECOND).sides[0]
    three = baked(store, {"cpu": (0.5,) * 3, "xla": (0.5,) * 3}, DOLLAR_A_SECOND).sides[0]
    assert three.billable_seconds == pytest.approx(one.billable_seconds, abs=0.5)
    assert [each.seed for each in three.trainings] == [17, 18, 19]


def test_the_target_is_reached_at_the_first_evaluation_above_it(store, golden):
    report = baked(store, {"cpu": (0.5,), "xla": (0.76,)}, DOLLAR_A_SECOND)
    assert report.target == pytest.approx(0.5 - 0.005)
    cpu, xla = report.sides
    assert cpu.target_seconds == pytest.approx(cpu.billable_seconds, abs=0.1)
    assert xla.target_seconds == pytest.approx(xla.billable_seconds - 4.0, abs=0.1)  # half of 8 productive seconds
    assert xla.target_dollars == pytest.approx(xla.target_seconds)
    assert report.winner is xla
    golden(report.sentences)


def test_the_lineages_own_run_sets_the_target(store):
    """Its workers reach 0.5; the first side stays below."""
    own = plan_run(store, small_config(), "2021-Q1")
    carry_out(own)
    report = baked(store, {"cpu": (0.4,), "xla": (0.6,)})
    assert report.target == pytest.approx(0.5 - 0.005)
    assert own.run_key in report.target_is
    assert report.sides[0].target_seconds is None


def test_a_training_without_gain_is_compared_over_all_steps(store):
    report = baked(store, ALIKE, start=0.5)
    assert report.target is None
    assert [side.target_seconds for side in report.sides] == [side.points[-1].seconds for side in report.sides]


def test_an_unknown_price_is_named_and_seconds_decide(store):
    report = baked(store, {"cpu": (0.5,), "xla": (0.4,)})
    assert {side.dollars for side in report.sides} == {None}
    assert "cost.dollars_per_worker_hour" in report.sides[0].unpriced
    assert report.sentences[0].startswith("cpu needs the fewest")
    assert "xla does not" in report.sentences[0]
    assert "Dollars are not compared" in report.sentences[0]


@pytest.mark.parametrize(
    ("value", "finding"), [(0.5, Finding.equal), (0.501, Finding.undecided), (0.4, Finding.different)]
)
def test_quality_is_judged_by_the_interval_over_the_rows(store, value: float, finding: Finding):
    report = baked(store, {"cpu": (0.5,), "xla": (value,)})
    (pair,) = report.pairs
    assert pair.quality.finding is finding
    assert pair.quality.rows == ROWS
    assert (pair.quality.rows_needed is not None) is (finding is Finding.undecided)
    assert "one seed" in report.sentences[1]


def test_seeds_that_differ_alike_on_both_sides_hide_no_difference(store):
    report = baked(store, {"cpu": (0.4, 0.5, 0.6), "xla": (0.39, 0.49, 0.5895)})
    cpu, (pair,) = report.sides[0], report.pairs
    assert cpu.low is not None
    assert cpu.low < 0.3
    assert pair.quality.finding is Finding.different
    assert pair.quality.difference == pytest.approx(-0.0102, abs=1e-4)
    assert pair.quality.high is not None
    assert pair.quality.high < -0.005


def test_seeds_that_disagree_about_the_difference_leave_it_undecided(store):
    """Over the rows alone the other side is worse beyond doubt."""
    report = baked(store, {"cpu": (0.5, 0.5, 0.5), "xla": (0.44, 0.48, 0.52)})
    (pair,) = report.pairs
    assert pair.quality.finding is Finding.undecided
    low, high = pair.quality.low, pair.quality.high
    assert low is not None
    assert high is not None
    assert low < -0.08  # Student's t of two degrees: 2.92 x 0.04 / 3^0.5 below the mean of -0.02
    assert high > 0.04
    assert "more seeds are needed" in report.sentences[1]


def test_students_interval_of_known_numbers():
    mean, low, high = mean_and_interval((1.0, 2.0, 3.0))  # t of 2 degrees: 4.3027
    assert (mean, low, high) == pytest.approx((2.0, 2 - 4.30265 / math.sqrt(3), 2 + 4.30265 / math.sqrt(3)), abs=1e-4)


def test_lost_work_is_named_and_does_not_count(store, close_as_lost: Callable[[str], None]):
    runs = plan_sides(store, small_config(), "2021-Q1", tuple(ALIKE))
    found = trained(store, runs, ALIKE)
    before = report_bakeoff(store, runs, found).sides[0]
    close_as_lost(runs.runs[0].plan.run_key)
    after = report_bakeoff(store, runs, found).sides[0]
    assert after.lost_seconds == pytest.approx(100.0)
    assert after.billable_seconds == pytest.approx(before.billable_seconds + 2.0, abs=0.01)  # its booting was needed


@pytest.fixture
def close_as_lost(store: DirectoryStore) -> Callable[[str], None]:
    def close(run_key: str) -> None:
        (record,) = (each for each in ledger.records(store, run_key) if each.stage == Stage.train)
        seconds = Phases(booting=2.0, lost=100.0)
        changed = {"attempt": 2, "failure": FailureClass.HOST, "seconds": seconds, "billable_seconds": 102.0}
        killed = record.model_copy(update=changed)
        store.write(f"runs/{run_key}/train/attempt-2/ledger.json", killed.to_json())

    return close


def test_sides_with_other_batches_are_no_bake_off(store):
    runs = plan_sides(store, small_config(), "2021-Q1", tuple(ALIKE))
    cpu, xla = trained(store, runs, ALIKE)
    with pytest.raises(CodeError, match="different batches"):
        report_bakeoff(store, runs, [cpu, xla._replace(outcome=xla.outcome.model_copy(update={"last_step": 7}))])


COST = (Path(__file__).parents[3] / "docs" / "cost.md").read_text()


def lines(*settings: str) -> dict[str, PublishedLine]:
    return {line.training.name: line for line in published_lines(load_config(None, settings).cost)}


@pytest.mark.parametrize(("name", "dollars"), [("SageMaker article, trn1", 41.43), ("SageMaker article, p4d", 68.60)])
def test_the_articles_table_at_its_own_prices(tmp_path: Path, name: str, dollars: float):
    (then,) = re.findall(r"^```yaml\n(- basis: sagemaker.*?)^```", COST, re.M | re.S)
    (tmp_path / "then.yaml").write_text(then)
    line = lines(f"cost.prices=[{tmp_path}/then.yaml]")[name]
    assert line.dollars == pytest.approx(dollars, abs=0.005)
    assert f"| ${dollars:.2f} (" in COST
    assert line.price is not None
    assert (line.price.basis, str(line.price.date)) == ("sagemaker", "2023-03-15")


def test_the_articles_table_at_the_listed_prices():
    found = lines()
    trn1, p4d = (found[f"SageMaker article, {name}"] for name in ("trn1", "p4d"))
    assert (trn1.dollars, p4d.dollars) == (pytest.approx(41.43, abs=0.005), pytest.approx(45.96, abs=0.005))
    assert trn1.dollars is not None
    assert p4d.dollars is not None
    assert 1 - trn1.dollars / p4d.dollars == pytest.approx(0.10, abs=0.005)  # the article said 40 %


@pytest.mark.parametrize(
    ("name", "dollars"),
    [
        ("MLPerf 2.1 to its target, 8 A100", 7.72),
        ("MosaicML baseline, 8 A100", 9.78),
        ("MosaicML methods, 8 A100", 3.61),
        ("MLPerf 3.1 to its target, 8 H100", 4.92),
    ],
)
def test_mlperfs_minutes_at_the_listed_prices(name: str, dollars: float):
    assert lines()[name].dollars == pytest.approx(dollars, abs=0.005)


def test_a_price_that_no_list_has_is_not_known():
    assert all(line.price is None for line in lines("cost.region=mars").values())
