"""Budgets refuse a run that is planned to cost more than is left, and say so if they can't be checked."""

from __future__ import annotations

import datetime as dt
import math

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.runs import RunPlan
from tasks.foundation.errors import ConfigError
from tasks.monitoring.estimates import run_cost
from tasks.monitoring.spending import Budget, budgets_of, require_budget
from tasks.runs.plan import read_plan
from tasks.runs.run import read_run
from tasks.runs.snapshot import Snapshot
from tests.support.workspace.past import settings, write_run

PRICED = (
    "compute=batch",
    "batch.processes_per_node=64",
    "batch.accelerator_instance=trn1.32xlarge",
    "batch.cpu_instance=m7i.2xlarge",
)


def spent_by_first_run(store: DirectoryStore) -> float:
    cost = read_run(Snapshot(store), write_run(store, 0)).totals.cost
    assert cost is not None
    return cost


def next_run(store: DirectoryStore, *overrides: str) -> RunPlan:
    """The plan of a second run like the first, with budgets."""
    first = read_plan(store, f"{0x5EED0000:016x}")
    return first.model_copy(update={"run_key": "f00d", "config": settings(*PRICED, *overrides)})


def test_a_run_that_is_planned_to_cost_more_than_its_budget_does_not_start(store: DirectoryStore) -> None:
    cost = spent_by_first_run(store)
    plan = next_run(store, f"cost.budget_dollars_per_run={cost / 2}")
    planned = run_cost(store, plan).dollars
    assert planned is not None
    assert planned == pytest.approx(cost, rel=0.1)
    with pytest.raises(ConfigError, match=rf"\$0.00 .*\${planned:.2f}") as refused:
        require_budget(store, plan)
    assert f"--set cost.budget_dollars_per_run={math.ceil(100 * planned) / 100:.2f}" in str(refused.value)
    assert require_budget(store, next_run(store, f"cost.budget_dollars_per_run={planned * 2}")) == ()
    (near,) = require_budget(store, next_run(store, f"cost.budget_dollars_per_run={planned * 1.2}"))
    assert near.near
    assert not near.exceeded
    assert require_budget(store, next_run(store)) == ()


def test_the_runs_of_a_week_share_its_budget(store: DirectoryStore) -> None:
    cost = spent_by_first_run(store)
    plan = next_run(store, f"cost.budget_dollars_per_week={cost * 1.5}")
    in_the_week, later = (dt.datetime(2026, 1, day, 12, tzinfo=dt.UTC) for day in (7, 12))
    (week,) = budgets_of(store, plan, now=in_the_week)
    assert (week.of, week.name, week.exceeded) == ("week", "2026-W02", True)
    assert week.spent == pytest.approx(cost)
    (following,) = budgets_of(store, plan, now=later)
    assert (following.name, following.spent, following.exceeded) == ("2026-W03", 0.0, False)


def test_a_budget_without_prices_names_the_machine_and_refuses_nothing(store: DirectoryStore) -> None:
    spent_by_first_run(store)
    plan = next_run(store, "cost.budget_dollars_per_run=1000", "batch.accelerator_instance=trn9.metal")
    (found,) = require_budget(store, plan)
    assert isinstance(found, Budget)
    assert found.unpriced == ("trn9.metal",)
    assert "no price for trn9.metal" in found.sentence
