"""The simulation of failures beside the closed forms, and the numbers that it takes from a ledger."""

from __future__ import annotations

import math

import pytest

import infra.compute.factory
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.foundation.errors import CapacityError, HangError, HostError
from tasks.laboratory.goodput import (
    NODES,
    PUBLISHED_HOURS,
    Assumed,
    FailureModel,
    best_interval,
    closed_form,
    expect_goodput,
    failure_model,
    simulate,
    young,
)
from tasks.planning.next_run import plan_run
from tasks.worker.training.checkpoint_interval import best_seconds
from tests.support.fakes.fake_runner import FakeRunner, ingest, small_config
from tests.support.fakes.stages import carry_out

DAY = 86_400.0


def model(hours: float = 50.0, save: float = 30.0, restart: float = 360.0, hangs: float = 0.0) -> FailureModel:
    values = {"node_hours_between": hours, "save_seconds": save, "restart_seconds": restart, "queued_seconds": 60.0}
    values |= {"hang_share": hangs, "notice_seconds": 600.0}
    return FailureModel(**{name: Assumed(value=value, source="stated") for name, value in values.items()})


@pytest.mark.parametrize("between", [1e5, 11_250.0, 2_812.5, 703.0])
@pytest.mark.parametrize("interval", [120.0, 600.0, 1_800.0])
def test_simulated_trainings_take_the_time_of_the_closed_form(between, interval):
    found = simulate(10 * DAY, interval, between, model())
    assert found is not None
    exact = closed_form(10 * DAY, interval, 30.0, 360.0, between)
    assert found.paid - 360.0 == pytest.approx(exact, rel=0.02)
    assert found.queued == pytest.approx(60.0 * found.failures)
    assert found.failures == pytest.approx(exact / between, rel=0.04, abs=0.3)


@pytest.mark.parametrize("hours", [6_300.0, 50.0])
def test_the_best_interval_is_that_of_young_and_of_checkpoint_every_auto(hours):
    """Where a save is short beside the time between failures, which both assume; the optimum is flat."""
    for nodes in (1, 16, 256):
        between = hours * 3600 / nodes
        seconds = 0.01 * between / 300
        found = best_interval(between, model(hours, save=seconds))
        assert found == pytest.approx(young(seconds, between), rel=0.2)
        assert found == pytest.approx(best_seconds(seconds, between, measured=False), rel=0.2)


def test_up_to_1024_nodes_goodput_falls_and_cost_rises(monkeypatch):
    found = expect_goodput(24.0, model(), 21.5)
    assert tuple(row.nodes for row in found.rows) == NODES
    goodput = [row.goodput or 0.0 for row in found.rows]
    assert goodput == sorted(goodput, reverse=True)
    assert goodput[0] > 0.97
    assert goodput[-1] < 0.1  # a failure each three minutes, and a restart takes six
    first = found.rows[0]
    assert first.dollars == pytest.approx(24 / goodput[0] * 21.5)
    assert expect_goodput(24.0, model(), 21.5) == found  # by its fixed seed
    assert expect_goodput(1.0, model(), None, (1,)).rows[0].dollars is None


def test_a_training_that_never_ends_has_no_goodput():
    (row,) = expect_goodput(24.0, model(hours=0.01), 21.5, (1,)).rows
    assert (row.goodput, row.hours, row.dollars) == (None, None, None)


def test_a_hang_costs_the_time_until_it_is_noticed():
    plain, hanging = (simulate(DAY, 600.0, 2_812.5, model(hangs=share)) for share in (0.0, 1.0))
    assert plain is not None
    assert hanging is not None
    assert hanging.failures == plain.failures
    assert hanging.paid - plain.paid == pytest.approx(600.0 * plain.failures)


def test_rate_and_cost_of_failures_come_from_the_ledger(tmp_path, monkeypatch):
    store = DirectoryStore(tmp_path / "workspace")
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    ingest(store, "2026-01")
    before = failure_model(store, small_config())
    assert before.node_hours_between.value == PUBLISHED_HOURS
    assert "arXiv" in before.node_hours_between.source
    for error in (HostError("lost"), CapacityError("none"), HangError("silent"), HostError("lost")):
        runner.fail(Stage.train, error)
        with pytest.raises(type(error)):
            carry_out(plan_run(store, small_config()))
    carry_out(plan_run(store, small_config()))
    found = failure_model(store, small_config())
    assert "3 failures" in found.node_hours_between.source  # no machine was lost for want of one
    assert found.node_hours_between.value * 3600 * 3 == pytest.approx(5 * 9.75, rel=0.3)
    assert found.hang_share.value == pytest.approx(1 / 3)
    assert found.restart_seconds.value == pytest.approx(1.75, abs=0.5)
    assert math.isclose(failure_model(store, small_config(), 100.0).node_hours_between.value, 100.0)
