"""One side's training, whose weights go at once."""

import pytest

from flows.laboratory.train_sides import train
from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RESULT
from tasks.health import health
from tasks.laboratory.sides import plan_sides
from tasks.validate import validate
from tasks.warmup import warmup
from tests.support.fakes.fake_runner import small_config


@pytest.fixture
def plan(store: DirectoryStore) -> RunPlan:
    return plan_sides(store, small_config(), "2021-Q1", ("cpu", "xla")).runs[0].plan


def trained(plan: RunPlan) -> TrainOutcome:
    validated = validate.fn(plan)
    return train.fn(plan, validated, warmup.fn(plan, validated, health.fn(plan, validated)))


def test_the_curve_is_kept_and_the_checkpoint_deleted(store, runner, plan):
    assert trained(plan).curve
    assert store.exists(RESULT.key(run=plan.run_key, stage=Stage.train))
    assert store.list("lineages") == []


def test_a_side_without_its_checkpoint_is_done(store, runner, plan):
    first = trained(plan)
    assert trained(plan) == first
    assert runner.stages == ["validate", "health", "warmup", "train"]


def test_a_checkpoint_that_was_not_deleted_in_time_is_deleted_the_next_time(store, runner, plan, monkeypatch):
    with monkeypatch.context() as killed:
        killed.setattr("flows.laboratory.train_sides.drop_checkpoints", lambda store, plan: None)
        trained(plan)
    assert store.list("lineages")
    trained(plan)
    assert store.list("lineages") == []


def test_a_damaged_result_is_set_aside_and_the_side_trained_again(store, runner, plan):
    first = trained(plan)
    store.write(RESULT.key(run=plan.run_key, stage=Stage.train), b"{")
    assert trained(plan).curve == first.curve
    assert runner.stages.count("train") == 2
    assert len(store.list("quarantine")) == 1
