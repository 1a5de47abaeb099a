"""A metric by seconds and dollars: worked out by hand from the attempts, and none of it where runs are not alike."""

from __future__ import annotations

import datetime as dt

import pytest

from configs.schema.operations import Price
from infra.store.base import Store
from infra.store.directory import DirectoryStore
from tasks.contracts.comparison import Comparison, CostPoint
from tasks.contracts.outcomes import StageResult, TrainOutcome
from tasks.contracts.references import CurvePoint
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import LEDGER, RESULT
from tasks.judging.compare_runs import compare_runs
from tasks.runs.metric_by_cost import cost_points, reached
from tasks.runs.run import read_run
from tasks.runs.snapshot import Snapshot
from tests.support.workspace.past import write_run

PRICE = Price(
    instance="trn1.2xlarge",
    dollars_per_hour=36.0,
    basis="on_demand",
    region="us-east-1",
    date=dt.date(2026, 1, 1),
    source="here",
)


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_seconds_are_spread_over_the_steps_and_all_machines_are_paid():
    points = cost_points([(100, 0.2), (150, 0.4), (200, 0.3)], (100, 200), (40.0, 60.0), PRICE, machines=2)
    assert [point.seconds for point in points] == [40.0, 70.0, 100.0]
    assert [point.dollars for point in points] == pytest.approx([0.8, 1.4, 2.0])
    assert [point.dollars for point in cost_points([(0, 1.0)], (0, 10), (1.0, 1.0), None, 1)] == [None]


def test_the_target_is_reached_by_training_and_a_loss_from_above():
    points = [CostPoint(step=step, seconds=step, dollars=None, value=value) for step, value in ((0, 9), (1, 4), (2, 2))]
    assert reached(points, "recall@10", 3.0) == points[1], "the value before the training does not count"
    assert reached(points, "loss", 3.0) == points[2]
    assert reached(points, "loss", 1.0) is None


def beside(store: Store, number: int, key: str, values: tuple[float, ...], steps: tuple[int, ...]) -> None:
    """A copy of the run `key` under a key of its own, with this curve of recall@10."""
    mine = f"{0xC0 + number:016x}"
    for file in store.list(f"runs/{key}/"):
        store.write(file.replace(key, mine), store.read(file).replace(key.encode(), mine.encode()))
    result = StageResult.model_validate_json(store.read(RESULT.key(run=mine, stage=Stage.train)))
    assert isinstance(result.outcome, TrainOutcome)
    curve = tuple(
        CurvePoint(step=step, metrics={"recall@10": value}) for step, value in zip(steps, values, strict=True)
    )
    changed = {"curve": curve, "first_step": steps[0], "last_step": steps[-1]}
    outcome = result.outcome.model_copy(update=changed)
    store.write(RESULT.key(run=mine, stage=Stage.train), result.model_copy(update={"outcome": outcome}).to_json())


def compared(store: Store, *numbers: int) -> Comparison:
    snapshot = Snapshot(store)
    return compare_runs(store, [(str(number), read_run(snapshot, f"{0xC0 + number:016x}")) for number in numbers])


def test_each_run_has_the_seconds_and_dollars_to_the_first_ones_end(store):
    key = write_run(store, 1)
    beside(store, 0, key, (0.2, 0.4, 0.6), (400, 600, 800))
    beside(store, 1, key, (0.2, 0.7, 0.5), (400, 600, 800))
    beside(store, 2, key, (0.2, 0.3, 0.4), (400, 600, 800))
    found = compared(store, 0, 1, 2)
    assert found.metric == "recall@10"
    assert [run.target.step if run.target else None for run in found.runs] == [800, 600, None]
    first, second, _ = found.runs
    assert first.target is not None
    assert second.target is not None
    assert first.target.dollars == pytest.approx(first.costs[-1].dollars)
    assert 0 < (second.target.dollars or 0) < (first.target.dollars or 0)
    assert second.costs[0].seconds > 0, "the machines boot and compile before the first step"


def test_runs_from_other_steps_have_no_common_target(store):
    key = write_run(store, 1)
    beside(store, 0, key, (0.2, 0.6), (400, 800))
    beside(store, 1, key, (0.2, 0.6), (500, 900))
    found = compared(store, 0, 1)
    assert found.metric is None
    assert all(run.target is None and not run.costs for run in found.runs)


def test_a_run_whose_attempts_are_gone_has_no_costs(store):
    key = write_run(store, 1)
    for number in (0, 1):
        beside(store, number, key, (0.2, 0.6), (400, 800))
    for file in store.list(f"runs/{0xC1:016x}/"):
        if LEDGER.match(file):
            store.delete(file)
    first, second = compared(store, 0, 1).runs
    assert first.target is not None
    assert second.costs == ()
