"""Budgets of a run and of a week: the dollars spent and planned, and the refusal to begin beyond them."""

import datetime as dt
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from configs.prices import cost_of, merged, price_of, unpriced
from configs.schema.config import Config
from configs.schema.prices import Charge
from infra.store.base import Store
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage, instance_of
from tasks.costs.run_cost import planned_dollars
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.runs.run import Run, read_runs
from tasks.runs.snapshot import Snapshot

NEAR = 0.8  # share of a budget that is warned of


class Budget(Record):
    """One budget, with the dollars spent and planned under it."""

    of: Literal["run", "week"] = Field(description="work that it limits: `run` or `week`")
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


def budgets_seen(config: Config, runs: Sequence[Run], run: Run | None, now: dt.datetime) -> tuple[Budget, ...]:
    """Return the configured budgets with the dollars spent; `runs` are all runs, `run` is the one in question."""
    found = []
    if run is not None and config.cost.budget_dollars_per_run is not None:
        found.append(_budget("run", run.run_key, config.cost.budget_dollars_per_run, [run]))
    if config.cost.budget_dollars_per_week is not None:
        week = week_of(now)
        begun = [one for one in runs if one.began_at and week_of(dt.datetime.fromisoformat(one.began_at)) == week]
        found.append(_budget("week", week, config.cost.budget_dollars_per_week, begun))
    return tuple(found)


def budgets_of(store: Store, plan: RunPlan, now: dt.datetime | None = None) -> tuple[Budget, ...]:
    """Return the configured budgets of a plan, with the dollars spent and planned; empty without budgets."""
    cost = plan.config.cost
    if cost.budget_dollars_per_run is None and cost.budget_dollars_per_week is None:
        return ()
    snapshot = Snapshot(store)
    runs = read_runs(snapshot, ()) if cost.budget_dollars_per_week is not None else []
    run = Run(snapshot, plan.run_key)
    planned = planned_dollars(store, plan)
    missing = _without_price(plan.config, [stage for stage in Stage if not run.stage(stage).done])
    seen = budgets_seen(plan.config, runs, run, now or dt.datetime.now(dt.UTC))
    return tuple(
        one.model_copy(update={"planned": planned, "unpriced": tuple(dict.fromkeys((*one.unpriced, *missing)))})
        for one in seen
    )


def require_budget(store: Store, plan: RunPlan) -> tuple[Budget, ...]:
    """Return the budgets to warn of: nearly used ones, and ones that can't be checked.

    Raises:
        ConfigError: the dollars planned exceed the rest of a budget; names the figures and the way out.
    """
    found = budgets_of(store, plan)
    for one in found:
        if one.exceeded and one.planned != 0.0:  # 0: all stages are done
            least = max(one.used, one.spent + 0.01)
            raise ConfigError(
                f"{plan.span.name} does not start: {one.sentence} Raise the budget, in the configuration or with "
                f"--set {one.key}={least:.2f}, or reduce the work, for example with --set train.epochs=1"
            )
    return tuple(one for one in found if one.near or one.unpriced)


def _budget(of: Literal["run", "week"], name: str, dollars: float, runs: Sequence[Run]) -> Budget:
    charges = merged(one.charge for run in runs for one in run.attempts if one.ended_at is not None)
    priced = [one for one in charges if one.price is not None]
    return Budget(of=of, name=name, dollars=dollars, spent=cost_of(priced) or 0.0, unpriced=unpriced(charges))


def _without_price(config: Config, stages: Sequence[Stage]) -> tuple[str, ...]:
    instances = (instance_of(config, stage) for stage in stages)
    charges = (Charge(instance=each, price=price_of(each, config.cost), billable_seconds=0.0) for each in instances)
    return unpriced(charges)
