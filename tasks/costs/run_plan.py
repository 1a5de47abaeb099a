"""A run on several numbers of machines: the cheapest, and the fewest that meet the deadline."""

from collections.abc import Iterable, Sequence

from infra.store.base import Store
from tasks.contracts.costs import CostPlan, MachinePlan
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.costs.places import Asked, Place, place_of
from tasks.costs.run_cost import run_cost
from tasks.foundation.errors import ConfigError
from tasks.planning.enough import enough


def plan_costs(store: Store, plan: RunPlan, instance: str | None = None, nodes: Sequence[int] = ()) -> CostPlan:
    """Return the cost of a run on each number of machines; write nothing.

    The global batch stays the same, so that the run takes the same steps on any number of machines.

    Args:
        instance: instance type of all stages of accelerator_queue; None: as configured.
        nodes: numbers of machines; empty: as configured.

    Raises:
        ConfigError: no figures of that instance are known; or the training runs on this machine, which is one.
        CorruptFolder, MissingFolder: a span is damaged or gone.
    """
    amounts, limit = enough(store, plan), plan.config.freshness.deadline_hours
    choices = []
    for number in nodes or (None,):
        asked = Asked(instance, number)
        place = place_of(plan.config, Stage.train, asked)
        _check(place, number)
        cost = run_cost(store, plan, amounts, asked)
        in_time = None if cost.seconds is None else cost.seconds <= limit * 3600
        choices.append(MachinePlan(instance=place.instance, nodes=place.machines, cost=cost, in_time=in_time))
    return CostPlan(
        run_key=plan.run_key,
        span=plan.span.name,
        rows=amounts.rows,
        batch_rows=plan.config.train.batch_rows,
        deadline_hours=limit,
        choices=tuple(choices),
        cheapest=_cheapest(choices),
        fewest_in_time=min((each.nodes for each in choices if each.in_time), default=None),
    )


def _check(place: Place, number: int | None) -> None:
    if number is not None and place.is_local:
        raise ConfigError(
            f"the training runs on this machine, so there are no {number} nodes to plan; name their type, as in "
            "--instance trn1.32xlarge"
        )


def _cheapest(choices: Iterable[MachinePlan]) -> int | None:
    priced = [(each.cost.dollars, each.nodes) for each in choices if each.cost.dollars is not None]
    return min(priced)[1] if priced else None
