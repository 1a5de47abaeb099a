"""The time and cost expected of a run: each stage, its machines, and the source of each figure; then the actual ones.

The decision about a span before it: the answer, its arithmetic, the gain expected of a training, and its evidence.
"""

from collections.abc import Sequence

from flows.presentation.model import Cell, Command, Section, Table, table
from flows.presentation.wording import MINUS, NONE, dollars, duration, moment
from infra.store.base import Store
from tasks.contracts.costs import RunCost
from tasks.contracts.runs import RunPlan
from tasks.planning.decisions import Action, Decision, Finding, Option, Worth, find
from tasks.runs.run import Run, against


def stages(cost: RunCost, where: str = "") -> Section:
    """Return the expected time and cost of each stage."""
    rows = [
        (
            one.stage.value,
            f"{one.machines} x {one.instance}" if one.instance else NONE,
            duration(one.seconds),
            dollars(one.dollars),
            f"{one.basis}: {one.source}",
        )
        for one in cost.stages
    ]
    rows.append(("all", "", duration(cost.seconds), dollars(cost.dollars), ""))
    return Section(
        f"Planned{where}",
        tuple(f"Not known: {each}." for each in cost.unknown),
        id="planned",
        tables=(table("", ("stage", "machines", ">time", ">cost", "~source"), rows),),
    )


def against_actual(run: Run) -> tuple[Section, ...]:
    """Return the planned and the actual seconds and dollars of a run's stages; nothing without a recorded plan."""
    found = against(run)
    if not found:
        return ()
    rows = [
        (
            each.name,
            duration(each.planned_seconds),
            duration(each.actual_seconds),
            f"{each.error:+.0%}".replace("%", " %") if each.error is not None else NONE,
            dollars(each.planned_dollars),
            dollars(each.actual_dollars),
        )
        for each in found
    ]
    columns = ("stage", ">planned", ">actual", ">error", ">planned cost", ">actual cost")
    lines = ("Recorded before the first stage. Actual figures are of the attempts that succeeded.",)
    return (Section("Planned and actual", lines, id="planned", short="Planned", tables=(table("", columns, rows),)),)


_CAN_NOT_KNOW = "Train {0}: nobody can know yet if it is worth it"
_SAYS = {
    Action.train: "Train {0}",
    Action.longer: "Train {0} longer, with twice the epochs",
    Action.refresh: "Let {0} wait for the next span, and refresh",
    Action.skip: "Let {0} wait for the next span, and refresh nothing",
}
POINT = "A point is 0.01 of recall@10 on the span after a training, which its model has not seen."


def decision_section(decision: Decision) -> Section:
    """Return the decision with the four answers and the trainings that it is based on."""
    ruled = ()
    if decision.overruled is not None:
        ruled = (f"The rule says: {decision.action}. {decision.reason}",)
    forecast = "" if decision.arrived else f"{decision.span.name} has not arrived; it is taken to be as the last span."
    waits = f"It would be trained together with {', '.join(decision.window[:-1])}." if decision.window[1:] else ""
    over = Command(
        "To overrule it, with any of train, longer, refresh, skip:",
        (f'millrace decide --span {decision.span.name} --overrule train --reason "..."',),
    )
    unsure = decision.taken is Action.train and decision.overruled is None and decision.finding is Finding.unknown
    return Section(
        (_CAN_NOT_KNOW if unsure else _SAYS[decision.taken]).format(decision.span.name),
        tuple(filter(None, (decision.why, *ruled, " ".join(filter(None, (waits, forecast))), POINT))),
        id="decision",
        short="Decision",
        tables=(_options(decision), _gain(decision), *_evidence(decision.evidence)),
        commands=(over,) if decision.taken.waits or not decision.arrived else (),
    )


def decision_sections(store: Store, plan: RunPlan) -> tuple[Section, ...]:
    """Return the decisions on record about the spans of a run, oldest first.

    Raises:
        StoreError: a decision is not readable.
    """
    found = (find(store, plan.config.lineage, span) for span in plan.window)
    return tuple(
        Section(made.title, made.lines, id=f"decision-{one.span.name}", short=f"Decision {one.span.name}",
                tables=made.tables)
        for one in found
        if one is not None and (made := decision_section(one))
    )  # fmt: skip


def _options(decision: Decision) -> Table:
    rows = [_option(one, decision) for one in decision.options]
    return table(
        f"Decided {moment(decision.at)} UTC", ("answer", ">points", ">time", ">cost", ">above a refresh"), rows
    )


def _gain(decision: Decision) -> Table:
    gain = decision.gain
    rows = [
        (
            decision.finding.value,
            points(gain.points) if decision.evidence else NONE,
            f"{points(gain.low)} to {points(gain.high)}",
            points(gain.needed),
            f"{gain.probability:.2f}",
            f"{gain.released} of {gain.released + gain.refused}" if gain.released else NONE,
        )
    ]
    columns = ("is it", ">points", "each bound with 0.95", ">needed", ">probability of that", ">trainings released")
    return table("Gain expected of the training", columns, rows)


def _option(one: Option, decision: Decision) -> tuple[Cell | str, ...]:
    taken = one.action is decision.taken
    refresh = next((each.dollars for each in decision.options if each.action is Action.refresh), None)
    above = one.dollars - refresh if one.dollars and refresh else None
    return (
        Cell(one.action.value, "→" if taken else "", "going" if taken else ""),
        points(one.points) if one.points else NONE,
        duration(one.seconds) if one.seconds else NONE,
        dollars(one.dollars) if one.dollars else NONE,
        dollars(above) if above is not None and above > 0 else NONE,
    )


def _evidence(evidence: Sequence[Worth]) -> tuple[Table, ...]:
    if not evidence:
        return ()
    rows = [
        (
            str(one.release),
            one.span,
            str(one.spans),
            points(one.points),
            f"{points(one.low)} to {points(one.high)}",
        )
        for one in evidence
    ]
    columns = (">release", "on the span after it", ">spans trained", ">points", "95 % interval")
    return (table("Worth of the last trainings", columns, rows),)


def points(value: float | None) -> str:
    """Format points with their sign, as in `+1.5`."""
    return NONE if value is None else f"{value:+.2f}".replace("-", MINUS)
