"""The costs of a run or of all runs as a section: dollars, the prices behind them, and their purposes."""

from collections.abc import Iterable

from configs.prices import basis_of
from configs.schema.operations import Charge
from flows.presentation.model import Cell, Section, Table, facts, table
from flows.presentation.wording import NONE, dollars, duration
from tasks.monitoring.spending import Budget, Costs


def cost_section(costs: Costs) -> tuple[Section, ...]:
    """Return the dollars of the ended attempts, with prices and purposes; nothing without attempts."""
    if not costs.charges and costs.open_dollars is None:
        return ()
    rows: list[tuple[str, Cell | str]] = [("cost", priced(costs.cost, costs.charges))]
    if costs.repriced_charges:
        rows.append(("at the prices given", priced(costs.repriced, costs.repriced_charges)))
    if costs.open_dollars is not None:
        rows.append(("attempts that go on", f"at most {dollars(costs.open_dollars)} more until now"))
    rows += [
        ("failed attempts", _some(costs.failed)),
        ("booting", _some(costs.booting)),
        ("compiling", _some(costs.compiling)),
        ("idle or lost machine time", _some(costs.idle)),
        ("a million vectors, infer alone", _some(costs.per_million_vectors)),
        ("a million pairs, train alone", _some(costs.per_million_pairs)),
        ("a point of recall@10 gained", _some(costs.per_point)),
    ]
    stages = [(stage, dollars(cost)) for stage, cost in costs.by_stage.items()]
    tables = (facts(rows), _prices(costs.charges), table("By stage", ("stage", ">cost"), stages))
    return (Section("Cost", id="cost", tables=tables),)


def priced(cost: float | None, charges: tuple[Charge, ...]) -> str:
    """Return dollars with basis and dates of the prices, as in `$9.05 (on demand, us-east-1, 2026-07-20)`."""
    basis = basis_of(charges)
    return f"unknown: {basis or 'no attempt'}" if cost is None else f"{dollars(cost)} ({basis})" if basis else NONE


def budget_boxes(budgets: Iterable[Budget]) -> tuple[Section, ...]:
    """Return a box on each budget that is nearly used, used up, or can't be checked."""
    boxes = []
    for each in budgets:
        if each.near:
            title, mood = ("Budget used up", "bad") if each.exceeded else ("Budget nearly used", "refused")
            boxes.append(Section(title, (each.sentence,), id=f"budget-{each.of}", mood=mood))
        elif each.unpriced:
            boxes.append(Section("Budget not checked", (each.sentence,), id=f"budget-{each.of}", mood="refused"))
    return tuple(boxes)


def _some(cost: float | None) -> str:
    return dollars(cost) if cost else ""


def _prices(charges: tuple[Charge, ...]) -> Table:
    rows = [
        (
            one.instance or "not named",
            duration(one.billable_seconds),
            dollars(one.price.dollars_per_hour) if one.price else NONE,
            dollars(one.cost),
            f"{basis_of([one])}; {one.price.source}" if one.price else "no list has its price",
        )
        for one in charges
    ]
    return table("Machines", ("machine", ">held", ">an hour", ">cost", "~price"), rows)
