"""The plan of a run's cost, recorded when it first begins, and its comparison with the run."""

import contextlib
import statistics
from collections.abc import Iterable

from infra.store.base import Conflict, Store
from tasks.contracts.costs import Against, PlannedRun, RunCost
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import PLANNED
from tasks.foundation.clock import now
from tasks.runs.run import Run

WHOLE = "all"  # name of the sums


def record(store: Store, run_key: str, cost: RunCost) -> None:
    """Record the expected cost of a run, unless an earlier invocation has. Raises StoreError: not written."""
    planned = PlannedRun(run_key=run_key, at=now(), cost=cost)
    with contextlib.suppress(Conflict):  # the first plan knew the least, and is the one to judge
        store.create(PLANNED.key(run=run_key), planned.to_json())


def planned_of(run: Run) -> PlannedRun | None:
    """Return the recorded plan of a run; None without one."""
    return run.snapshot.read(PLANNED.key(run=run.run_key), PlannedRun)


def against(run: Run) -> tuple[Against, ...]:
    """Return each stage's planned and actual figures, with their sums last; empty without a plan.

    Actual figures are from the attempt that succeeded, since a plan assumes no failures. The sums are over the
    stages that are done.
    """
    planned = planned_of(run)
    if planned is None:
        return ()
    found = []
    for one in planned.cost.stages:
        done = [each for each in run.attempts if each.stage is one.stage and each.ended_at and each.failure is None]
        found.append(
            Against(
                name=Stage(one.stage).value,
                planned_seconds=one.seconds,
                actual_seconds=round(done[-1].wall_seconds, 3) if done else None,
                planned_dollars=one.dollars,
                actual_dollars=done[-1].cost if done else None,
            )
        )
    both = [each for each in found if each.actual_seconds is not None]
    return (*found, _sums(both)) if both else tuple(found)


def error_of(runs: Iterable[Run]) -> float | None:
    """Return the median absolute error of the plans' seconds, as a share; None if no run has a plan with a figure."""
    errors = [abs(whole[-1].error) for run in runs if (whole := against(run)) and whole[-1].error is not None]
    return statistics.median(errors) if errors else None


def _sums(each: list[Against]) -> Against:
    def add(name: str) -> float | None:
        values = [getattr(one, name) for one in each]
        return None if None in values else sum(values)

    names = ("planned_seconds", "actual_seconds", "planned_dollars", "actual_dollars")
    return Against(name=WHOLE, **{name: add(name) for name in names})
