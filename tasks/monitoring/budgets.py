"""Budgets of a run and of a week: the dollars spent and planned, and the refusal to begin beyond them."""

import datetime as dt
import math
from collections.abc import Collection, Iterable, Sequence
from typing import Literal

from pydantic import Field

from configs.prices import cost_of, merged, price_of, unpriced
from configs.schema.config import Config
from configs.schema.prices import Charge
from infra.store.base import Store
from tasks.contracts.kinds import is_refresh
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage, instance_of
from tasks.costs.run_cost import planned_dollars, stages_left
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.monitoring.work_sums import WorkSums, begun_in
from tasks.runs.run import Run, read_runs
from tasks.runs.snapshot import Snapshot

NEAR = 0.8  # share of a budget that is warned of
_LESS = ", or reduce the work, for example with --set train.epochs=1"


class OverBudget(ConfigError):
    """The dollars planned exceed the rest of a budget."""


class Budget(Record):
    """One budget, with the dollars spent and planned under it."""

    of: Literal["run", "week"] = Field(description="work that it limits: `run` (or refresh) or `week`")
    name: str = Field(description="run key, or ISO week in UTC, for example 2026-W47")
    dollars: float = Field(description="the budget, in dollars")
    spent: float = Field(description="dollars of ended attempts whose machines have a price")
    planned: float | None = Field(default=None, description="dollars of the stages left; null: not known")
    unpriced: tuple[str, ...] = Field(description="machines without a price, for which the budget can't be checked")

    @property
    def key(self) -> str:
        """The setting that has it."""
        return f"cost.budget_dollars_per_{self.of}"

    @property
    def used(self) -> float:
        return self.spent + (self.planned or 0.0)

    @property
    def near(self) -> bool:
        return self.used >= NEAR * self.dollars

    @property
    def exceeded(self) -> bool:
        """True if the planned dollars exceed the rest, or if nothing is left."""
        return self.used > self.dollars or self.spent >= self.dollars

    @property
    def sentence(self) -> str:
        planned = "" if self.planned is None else f" and {_shown(self.planned)} planned"
        spent = f"{_shown(self.spent)} spent{planned} of the budget of {_shown(self.dollars)} of {self.of} {self.name}"
        if not self.unpriced:
            return f"{spent} ({self.key})."
        return f"{spent} ({self.key}); it can't be checked: no price for {', '.join(self.unpriced)}."


def _shown(dollars: float) -> str:
    """Format dollars with cents; less than ten cents with two significant digits, so that a little is not $0.00."""
    return f"${dollars:.2g}" if 0 < dollars < 0.1 else f"${dollars:,.2f}"


def week_of(moment: dt.datetime) -> str:
    """Return the ISO week of a time in UTC, as in `2026-W47`."""
    year, week, _ = moment.astimezone(dt.UTC).isocalendar()
    return f"{year}-W{week:02d}"


def budgets_seen(store: Store, config: Config | None, runs: Sequence[Run], run: Run | None) -> tuple[Budget, ...]:
    """Return the configured budgets with the dollars spent until now.

    Args:
        config: None: nothing is configured.
        runs: all runs; the refreshes and publications of the week are read besides.
        run: the run, or the refresh, whose own budget is asked for.
    """
    return _seen(store, config, runs, run, dt.datetime.now(dt.UTC)) if config is not None else ()


def budget_of_run(config: Config, run: Run) -> tuple[Budget, ...]:
    """Return the budget of one run or refresh, with the dollars spent; empty without one."""
    dollars = config.cost.budget_dollars_per_run
    return () if dollars is None else (_budget("run", run.run_key, dollars, _charges(run)),)


def budgets_of(
    store: Store, plan: RunPlan, stages: Collection[Stage] | None = None, now: dt.datetime | None = None
) -> tuple[Budget, ...]:
    """Return the configured budgets of a plan, with the dollars spent and planned; empty without budgets.

    Args:
        stages: the stages that are wanted; None: all stages of the plan.
    """
    cost = plan.config.cost
    if cost.budget_dollars_per_run is None and cost.budget_dollars_per_week is None:
        return ()
    snapshot = Snapshot(store)
    runs = read_runs(snapshot, ()) if cost.budget_dollars_per_week is not None else []
    run = Run(snapshot, plan.run_key)
    planned = planned_dollars(store, plan, stages)
    missing = _without_price(plan.config, stages_left(run, stages))
    seen = _seen(store, plan.config, runs, run, now or dt.datetime.now(dt.UTC))
    return tuple(
        one.model_copy(update={"planned": planned, "unpriced": tuple(dict.fromkeys((*one.unpriced, *missing)))})
        for one in seen
    )


def require_budget(store: Store, plan: RunPlan, stages: Collection[Stage] | None = None) -> tuple[Budget, ...]:
    """Return the budgets to warn of: nearly used ones, and ones that can't be checked. Takes the same as `budgets_of`.

    Raises:
        OverBudget: the dollars planned exceed the rest of a budget; names the figures and the way out.
    """
    found = budgets_of(store, plan, stages)
    name = f"the refresh of {plan.span.name}" if is_refresh(plan.run_key) else plan.span.name
    for one in found:
        if one.exceeded and one.planned != 0.0:  # 0: all stages are done
            least = math.ceil(100 * max(one.used, one.spent + 0.01)) / 100
            raise OverBudget(
                f"{name} does not start: {one.sentence} Raise the budget, in the configuration or with "
                f"--set {one.key}={least:.2f}{'' if is_refresh(plan.run_key) else _LESS}"
            )
    return tuple(one for one in found if one.near or one.unpriced)


def _seen(store: Store, config: Config, runs: Iterable[Run], run: Run | None, now: dt.datetime) -> tuple[Budget, ...]:
    own, dollars = budget_of_run(config, run) if run is not None else (), config.cost.budget_dollars_per_week
    if dollars is None:
        return own
    week, today = week_of(now), now.astimezone(dt.UTC)
    days = (today + dt.timedelta(days=day - today.isoweekday()) for day in (1, 7))
    work = [*runs, *begun_in(store, (f"{day:%Y-%m}" for day in days))]
    begun = [one for one in work if one.began_at and week_of(dt.datetime.fromisoformat(one.began_at)) == week]
    return (*own, _budget("week", week, dollars, [each for one in begun for each in _charges(one)]))


def _charges(of: Run | WorkSums) -> Sequence[Charge]:
    return of.charges if isinstance(of, WorkSums) else [one.charge for one in of.attempts if one.ended_at is not None]


def _budget(of: Literal["run", "week"], name: str, dollars: float, each: Iterable[Charge]) -> Budget:
    charges = merged(each)
    priced = [one for one in charges if one.price is not None]
    return Budget(of=of, name=name, dollars=dollars, spent=cost_of(priced) or 0.0, unpriced=unpriced(charges))


def _without_price(config: Config, stages: Sequence[Stage]) -> tuple[str, ...]:
    instances = (instance_of(config, stage) for stage in stages)
    charges = (Charge(instance=each, price=price_of(each, config.cost), billable_seconds=0.0) for each in instances)
    return unpriced(charges)
