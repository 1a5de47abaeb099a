"""The decision before each span is trained: train, train longer, or let it wait with or without a refresh.

The gain expected of a training, with its doubt, is set against its cost. The settings are in the section `decide`.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from configs.schema.config import Config
from configs.schema.operations import DecideConfig
from infra.store.base import Store
from tasks.contracts.references import SpanRef
from tasks.contracts.spans import after as span_after
from tasks.contracts.stages import Stage
from tasks.foundation.clock import now
from tasks.foundation.nouns import plural
from tasks.laboratory.worth import gain_of_training, new_items, newest_runs, points_of_more_steps, worth_of_trainings
from tasks.monitoring.estimates import Past, past, stage_cost
from tasks.planning.decisions import LONGER, Action, Decision, Finding, Gain, Option, Worth, find, spans_to_train
from tasks.planning.next_run import after, plan_run, position
from tasks.planning.start import Origin, consumed, find_start, on_active
from tasks.runs import branches, releases
from tasks.runs.catalogues import plan_refresh
from tasks.runs.plan import NothingToDo, listed, rows_of
from tasks.runs.snapshot import Snapshot

_Costs = dict[Action, tuple[float | None, float | None]]  # seconds and dollars; None: not known


class _Case(NamedTuple):
    """The window to decide about, with the rows of each span if known."""

    span: SpanRef
    window: tuple[str, ...]
    rows: tuple[int, ...] | None
    arrived: tuple[SpanRef, ...]
    forecast: bool


def decide(store: Store, config: Config, span: str | None = None) -> Decision:
    """Decide about a span, by default the oldest one not decided yet; without one, about the next that will arrive.

    A decision on record is returned as it is. Nothing is written.

    Raises:
        ConfigError: no span exists, or the span is unknown or can't come next.
        StoreError: a checkpoint, a release or a decision is not readable.
    """
    active = on_active(store, config)
    start = find_start(store, active)
    case = _case(store, config, active, start, span)
    known = find(store, config.lineage, case.span)
    if known is not None and (known.arrived or case.forecast):
        return known
    made = _decided(store, config, active, start, case)
    return made.model_copy(update={"overruled": known.overruled}) if known is not None else made


def _case(store: Store, config: Config, active: Config, start: Origin, span: str | None) -> _Case:
    trained = consumed(start.head)
    waits = after(spans_to_train(store, active.lineage), consumed(start.parent))
    coming = span_after(max((*waits, *trained), key=position).name) if trained else None
    try:
        if span is None or span != coming:
            plan = plan_run(store, config, span)
            window = tuple(each.name for each in plan.window)
            return _Case(plan.span, window, rows_of(store, plan.window), plan.window, False)
    except NothingToDo:
        later = [each for each in waits if each not in trained]
        if later:  # all of them wait: the last decision is shown
            return _Case(later[-1], tuple(each.name for each in waits), rows_of(store, waits), tuple(waits), False)
        if coming is None:
            raise
    assert coming is not None, "only a lineage that has trained knows the span after"
    rows = rows_of(store, (*waits, trained[-1]))
    return _Case(SpanRef(name=coming, version=1), (*(each.name for each in waits), coming), rows, (), True)


def _decided(store: Store, config: Config, active: Config, start: Origin, case: _Case) -> Decision:
    rule, snapshot = config.decide, Snapshot(store)
    state = start.head[1] if start.head is not None else None
    runs = list(newest_runs(snapshot, state, rule.scores)) if state is not None else []
    trainings = worth_of_trainings(snapshot, runs, rule.scores)
    more = points_of_more_steps(runs, rule.scores)
    known = past(snapshot, state.consumed if state is not None else ())
    rest, why_not = _without_training(store, config, case)
    costs = _costs(store, active, known, case)
    extra = _extra(costs, Action.train, rest)
    needed, why_needed = _needed(rule, extra)
    gain = gain_of_training(trainings.worth, trainings.refused, trainings.released, len(case.window), needed)
    said = f"{_expected(case, trainings.worth, gain)} {_certainty(gain, why_needed)}"
    action, reason = _answer(rule, case, gain, more, costs, rest, said)
    if action.waits and why_not:
        reason = f"{reason} {why_not}"
    if case.span in consumed(start.head):
        action, reason = Action.train, f"{case.span.name} is trained already; its run goes on."
    return Decision(
        lineage=branches.root(store, config.lineage),
        span=case.span,
        arrived=not case.forecast,
        window=case.window,
        at=now(),
        action=action,
        reason=reason,
        evidence=trainings.worth,
        gain=gain,
        finding=gain.finding,
        options=_options(costs, gain.points if trainings.worth else None, more),
    )


def _without_training(store: Store, config: Config, case: _Case) -> tuple[Action, str]:
    """Return what can be done instead of a training, and the reason if that is nothing."""
    if (hold := releases.hold_of(store)) is not None:
        return Action.skip, f"Nothing is refreshed meanwhile: {hold.sentence}"
    try:
        if not case.forecast:
            plan_refresh(store, config, waiting=case.arrived)
    except NothingToDo:
        return Action.skip, "Nothing is refreshed meanwhile, since the release holds every known item."
    return Action.refresh, ""


def _needed(rule: DecideConfig, extra: float | None) -> tuple[float, str]:
    """Return the least points for which a span is trained, and the settings that say so."""
    least, rate = rule.least_points, rule.least_points_per_dollar
    if rate is None:
        return least, f"decide.least_points {least:g}"
    if extra is None or rate * extra <= least:
        unknown = ", while the cost of a training is not known" if extra is None else ""
        return least, f"decide.least_points {least:g}{unknown}"
    return rate * extra, f"{rate * extra:.2f}, by decide.least_points_per_dollar {rate:g} for {_dollars(extra)} more"


def _expected(case: _Case, evidence: Sequence[Worth], gain: Gain) -> str:
    """Return the gain expected, its bounds and its origin."""
    bounds = f"with 0.95 confidence at least {gain.low:.2f}, and at most {gain.high:.2f}"
    if not evidence:
        return f"No training has a forward score yet. Before any score, a training is taken to gain {bounds}."
    many = plural(len(evidence), "forward score")
    told = f"Training {listed(case.window)} is expected to gain {gain.points:.2f} points, by {many}: {bounds}."
    if not gain.refused:
        return told
    times = f"{gain.released} of {gain.released + gain.refused}"
    return f"{told} {times} trainings were released, and a refused one gains nothing, which is counted."


def _certainty(gain: Gain, needed: str) -> str:
    least = f"the gain is at least {needed}, with a probability of {_probability(gain.probability)}"
    return {
        Finding.worth: f"So it is worth it: {least}.",
        Finding.waits: f"So it is not worth it: {least}.",
        Finding.unknown: f"Nobody can know yet if it is worth it: {least}.",
    }[gain.finding]


def _probability(value: float) -> str:
    """Format a probability; never as certain."""
    return (
        f"{min(max(value, 0.01), 0.99):.2f}"
        if 0.005 <= value < 0.995
        else ("0.99 or more" if value > 0.5 else "0.01 or less")
    )


def _answer(
    rule: DecideConfig,
    case: _Case,
    gain: Gain,
    more: float | None,
    costs: _Costs,
    rest: Action,
    said: str,
) -> tuple[Action, str]:
    """Return the rule's answer and its arithmetic. A training that may be worth it is made: it brings a score."""
    if len(case.window) > rule.most_waiting:
        return Action.train, f"{said} {_enough_waited(rule.most_waiting)}, so it is trained in any case."
    if gain.finding is Finding.waits:
        return rest, said
    if gain.finding is Finding.unknown:
        return Action.train, f"{said} So it is trained, and the next score tells more."
    extra = _extra(costs, Action.train, rest)
    if extra is None:
        lacking = "time" if costs[Action.train][0] is None else "price"
        return _perhaps_longer(rule, more, costs, f"{said} Its {lacking} is not known, so points alone decide.")
    rate = f"It costs {_dollars(extra)} more than to {rest}: {gain.points / extra:,.2f} points a dollar."
    return _perhaps_longer(rule, more, costs, f"{said} {rate}")


def _enough_waited(most: int) -> str:
    if most == 0:
        return "No span may wait (decide.most_waiting is 0)"
    return f"No more than {most} may wait (decide.most_waiting)"


def _perhaps_longer(rule: DecideConfig, more: float | None, costs: _Costs, said: str) -> tuple[Action, str]:
    if rule.longer_least_points is None:
        return Action.train, said
    if more is None:
        return Action.train, f"{said} No curve shows what more steps are worth."
    gain = f"The second half of the steps gained {more:.2f} points, expected again of twice the epochs"
    if more < rule.longer_least_points:
        return Action.train, f"{said} {gain}: below decide.longer_least_points {rule.longer_least_points:g}."
    extra = _extra(costs, Action.longer, Action.train)
    if extra is not None and rule.least_points_per_dollar is not None and more / extra < rule.least_points_per_dollar:
        return Action.train, f"{said} {gain}, for {_dollars(extra)}: below decide.least_points_per_dollar."
    return Action.longer, f"{said} {gain}: at least decide.longer_least_points {rule.longer_least_points:g}."


def _extra(costs: _Costs, action: Action, instead: Action) -> float | None:
    """Return the extra dollars of one action over another; None if a price is not known, or there are none."""
    this, other = costs[action][1], costs[instead][1]
    return this - other if this is not None and other is not None and this > other else None


def _costs(store: Store, config: Config, known: Past, case: _Case) -> _Costs:
    """Return seconds and dollars of each answer. A refresh validates, embeds new items and releases."""
    share = new_items(store)
    work = {Stage.validate: 1.0, Stage.infer: 1.0 if share is None else share, Stage.release: 1.0}
    whole = dict.fromkeys(Stage, 1.0)
    return {
        Action.train: _cost(known, config, whole, case.rows),
        Action.longer: _cost(known, config, whole | {Stage.train: float(LONGER)}, case.rows),
        Action.refresh: _cost(known, config, work, case.rows),
        Action.skip: (0.0, 0.0),
    }


def _options(costs: _Costs, points: float | None, more: float | None) -> tuple[Option, ...]:
    """Return the answers with points, time and cost."""
    both = None if points is None or more is None else points + more
    expected = {Action.train: points, Action.longer: both, Action.refresh: 0.0, Action.skip: 0.0}
    return tuple(
        Option(action=action, points=expected[action], seconds=seconds, dollars=dollars)
        for action, (seconds, dollars) in costs.items()
    )


def _cost(
    known: Past, config: Config, work: dict[Stage, float], rows: Sequence[int] | None
) -> tuple[float | None, float | None]:
    """Return seconds and dollars of stages, each times its number; None if a stage was never done, or has no price."""
    each = [(stage_cost(known, config, stage, rows), times) for stage, times in work.items()]
    seconds = _sum(None if one.seconds is None else one.seconds * times for one, times in each)
    return seconds, _sum(None if one.dollars is None else one.dollars * times for one, times in each)


def _dollars(value: float) -> str:
    """Format dollars; below ten cents with two significant digits, so that no cost looks like none."""
    return f"${value:,.2f}" if value >= 0.1 else f"${value:.2g}"


def _sum(values: Iterable[float | None]) -> float | None:
    found = list(values)
    known = [each for each in found if each is not None]
    return sum(known) if len(known) == len(found) else None
