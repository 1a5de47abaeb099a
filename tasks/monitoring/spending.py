"""Spending: the dollars of runs by stage and purpose, and the budgets of a run and of a week.

All are sums over ended attempts at the prices of their time, also for a million vectors, a million pairs and a point
of recall. A sum with a machine without a price is not known. Work beyond a budget is refused before it begins.
"""

import datetime as dt
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

from pydantic import Field

from configs.prices import cost_of, merged, price_of, repriced, sum_dollars, unpriced
from configs.schema.config import Config
from configs.schema.operations import Charge, PriceList
from infra.store.base import Store
from tasks.contracts.kinds import is_refresh
from tasks.contracts.outcomes import InferOutcome, Phases, TrainOutcome
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage, instance_of
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.monitoring.estimates import run_cost, stages_left
from tasks.monitoring.work_sums import WorkSums, begun_in
from tasks.runs.ledger import LedgerRecord
from tasks.runs.run import Run, read_runs
from tasks.runs.snapshot import Snapshot

POINT_METRIC = "recall@10"
POINT = 0.01  # gain of recall@10 on the holdout, against the champion
MILLION = 1e6


class Costs(Record):
    """Dollars of the ended attempts of one run, or of several. Queued time is free.

    `failed` has all dollars of attempts that failed, and the other purposes divide the whole by phase. An attempt's
    dollars are divided as its seconds on machines are, and all machines of an attempt count alike. `idle` is paid
    time without booting, compiling, restoring or kept work: work that is done again, and any time that the phases do
    not cover, as of machines that waited for others.
    """

    cost: float | None = Field(description="cost in dollars; null: no attempt, or a machine has no price")
    charges: tuple[Charge, ...] = Field(description="machine-seconds by instance and price, which the cost adds up")
    by_stage: dict[str, float | None] = Field(description="dollars by stage")
    failed: float | None = Field(description="dollars of attempts that failed")
    booting: float | None = Field(description="dollars of starting and ending containers and processes")
    compiling: float | None = Field(description="dollars of making or reading compiled graphs")
    idle: float | None = Field(description="dollars of paid time without booting, compiling, restoring or kept work")
    per_million_vectors: float | None = Field(description="dollars of infer for a million vectors; null: none made")
    per_million_pairs: float | None = Field(description="dollars of train for a million pairs; null: none trained")
    per_point: float | None = Field(
        description="dollars of everything for a gain of 0.01 of recall@10 against the champion, on the holdout; null: "
        "nothing was gained"
    )
    per_release: float | None = Field(description="dollars of all runs for each release; null: none made")
    open_dollars: float | None = Field(
        description="most that attempts without an end have cost until now, queued time included; null: none, or no "
        "price"
    )
    repriced: float | None = Field(
        default=None, description="cost at the prices of --prices; null: not asked for, or a machine has no price there"
    )
    repriced_charges: tuple[Charge, ...] = Field(default=(), description="the charges at the prices of --prices")

    def at(self, lists: Sequence[PriceList]) -> "Costs":
        """Return the costs with a second sum, at the prices of other lists."""
        now = repriced(self.charges, lists)
        return self.model_copy(update={"repriced": cost_of(now) if now else None, "repriced_charges": now})


def costs_of(runs: Sequence[Run], now: dt.datetime | None = None) -> Costs:
    """Return the costs of runs; `now` is the time up to which attempts without an end are counted."""
    attempts = [one for run in runs for one in run.attempts]
    ended = [one for one in attempts if one.ended_at is not None]
    charges = merged(one.charge for one in ended)
    cost = cost_of(charges) if ended else None
    by_stage = {
        stage.value: sum_dollars(one.cost for one in ended if one.stage is stage)
        for stage in dict.fromkeys(one.stage for one in ended)
    }
    begun = [one for one in attempts if one.ended_at is None]
    return Costs(
        cost=cost,
        charges=charges,
        by_stage=by_stage,
        failed=_sum(ended, lambda one: one.failure is not None),
        booting=_sum(ended, lambda one: _share(one, one.seconds.booting)),
        compiling=_sum(ended, lambda one: _share(one, one.seconds.compiling)),
        idle=_sum(ended, lambda one: _rest(_share(one, _used(one.seconds))) if one.billable_seconds else 0.0),
        per_million_vectors=_per(by_stage.get(Stage.infer), _vectors(runs), MILLION),
        per_million_pairs=_per(by_stage.get(Stage.train), _pairs(runs), MILLION),
        per_point=_per(cost, points_gained(runs), 1.0),
        per_release=_per(cost, sum(run.release is not None for run in runs), 1.0),
        open_dollars=sum_dollars(_until(one, now) for one in begun) if begun and now is not None else None,
    )


def points_gained(runs: Iterable[Run]) -> float:
    """Return the points of recall@10 that models gained against their champions; refused models gained none."""
    gained = 0.0
    for run in runs:
        judged = run.judgement
        if judged is None or run.rejected or judged.outcome.champion is None:
            continue
        before, after = (each.get(POINT_METRIC) for each in (judged.outcome.champion, judged.outcome.challenger))
        if before is not None and after is not None:
            gained += max(0.0, after - before) / POINT
    return gained


def _sum(attempts: Iterable[LedgerRecord], part: Callable[[LedgerRecord], float]) -> float | None:
    """Return the dollars of a part of each attempt; None if one that has such a part has no price."""
    parts = [(one.cost, part(one)) for one in attempts]
    return sum_dollars(None if cost is None else cost * each for cost, each in parts if each) if parts else None


def _share(record: LedgerRecord, seconds: float) -> float:
    return min(1.0, seconds / record.seconds.paid) if record.seconds.paid else 0.0


def _rest(share: float) -> float:
    return round(1 - share, 9)  # a sum of phases is not the whole to the last digit


def _used(seconds: Phases) -> float:
    return seconds.booting + seconds.compiling + seconds.restoring + seconds.productive


def _per(dollars: float | None, amount: float, unit: float) -> float | None:
    return dollars / amount * unit if amount and dollars is not None else None


def _until(record: LedgerRecord, now: dt.datetime) -> float | None:
    seconds = max(0.0, (now - dt.datetime.fromisoformat(record.started_at)).total_seconds())
    return None if record.price is None else record.price.dollars(seconds * record.machines)


def _vectors(runs: Iterable[Run]) -> int:
    made = (run.outcome(Stage.infer) for run in runs)
    return sum(one.vectors_made for one in made if isinstance(one, InferOutcome))


def _pairs(runs: Iterable[Run]) -> int:
    trained = (run.outcome(Stage.train) for run in runs)
    return sum(one.rows_trained for one in trained if isinstance(one, TrainOutcome))


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
    planned = run_cost(store, plan, stages).dollars
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
