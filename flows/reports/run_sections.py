"""The sections of a run's page, each from what its stages left; a section of which nothing is known is left out."""

from __future__ import annotations

from flows.reports import run_facts, run_figures
from flows.reports.page import Section
from flows.reports.tables import Cell, Table, state, table, verdict
from flows.reports.wording import NONE, difference, dollars, duration, moment, number, plural, share
from tasks.contracts import (
    Check,
    CurvePoint,
    Phases,
    Stage,
    TrainOutcome,
)
from tasks.history import PastRun
from tasks.ledger import totals

PHASES = tuple(Phases.model_fields)


def sections(run: PastRun, refusals: tuple[Check, ...], parent_run: str | None) -> list[Section]:
    """All that there is to show, in the order of the page.

    Args:
        refusals: what made health refuse its machines the last time.
        parent_run: the key of the run that made the checkpoint which this one started from.
    """
    made = (
        _gates(run),
        _curves(run),
        _time(run),
        _attempts(run),
        run_facts.checks(run, refusals),
        run_facts.slices(run),
        run_facts.speed(run),
        run_facts.compiled(run),
        _invocations(run),
        run_facts.settings(run),
        run_facts.origin(run, parent_run),
    )
    return [section for section in made if section is not None]


def _gates(run: PastRun) -> Section | None:
    if run.judged is None:
        return None
    outcome, verdicts = run.judged.outcome, run.judged.verdicts
    champion = outcome.champion or {}
    gates = table(
        "What each gate said; a critical one that is refused stops the release",
        ("metric", "verdict", "severity", ">this run", ">champion", ">difference", "~in words"),
        [
            (v.metric, verdict(v), v.severity, number(v.value), number(v.baseline), difference(v.value, v.baseline),
             v.sentence)
            for v in verdicts
        ],
    )  # fmt: skip
    metrics = table(
        f"All metrics on {plural(outcome.holdout_rows, 'holdout row')} and {plural(outcome.corpus_items, 'item')}; "
        + (f"the champion is {outcome.champion_version}" if outcome.champion else "there was no champion yet"),
        ("metric", ">this run", ">champion", ">difference"),
        [
            (name, number(value), number(champion.get(name)), difference(value, champion.get(name)))
            for name, value in outcome.challenger.items()
        ],
    )
    return Section("gates", "Quality gates", tables=(gates, metrics) if verdicts else (metrics,))


def _curves(run: PastRun) -> Section | None:
    trained = run.outcome(Stage.train)
    if not isinstance(trained, TrainOutcome) or not (drawn := run_figures.curves(trained)):
        return None
    asked = (("Losses by step", trained.losses), ("Holdout metrics by step", trained.curve))
    folded = tuple(_points(caption, points) for caption, points in asked if points)
    return Section("curves", "Training", pictures=tuple(drawn), folded=folded)


def _points(caption: str, points: tuple[CurvePoint, ...]) -> Table:
    names = list(dict.fromkeys(name for point in points for name in point.metrics))
    rows = [(str(point.step), *(number(point.metrics.get(name)) for name in names)) for point in points]
    return table(caption, ("step", *(f">{name}" for name in names)), rows)


def _time(run: PastRun) -> Section | None:
    if not run.attempts:
        return None
    shown = [stage for stage in Stage if any(one.stage is stage for one in run.attempts)]
    rows = []
    for stage in shown:
        of_stage = [one for one in run.attempts if one.stage is stage]
        summed = totals(of_stage, 0)
        rows.append(
            (
                stage.value,
                _stage_state(run, stage),
                str(len(of_stage)),
                *(_seconds(getattr(summed.seconds, phase)) for phase in PHASES),
                duration(sum(one.wall_seconds for one in of_stage)),
                dollars(summed.cost),
            )
        )
    columns = ("stage", "", ">attempts", *(f">{phase}" for phase in PHASES), ">in all", ">cost")
    by_stage = table("Seconds of all attempts, by stage", columns, rows)
    all_of_it = run.totals
    line = f"Goodput {share(all_of_it.goodput)}: the productive share of {duration(run.wall_seconds)} of attempts."
    return Section("time", "Time and stages", (line,), (run_figures.stages(run.attempts),), (by_stage,))


def _stage_state(run: PastRun, stage: Stage) -> Cell:
    if stage in run.results:
        return Cell("done", "✓", "good")
    last = [one for one in run.attempts if one.stage is stage][-1]
    if last.failure is not None:
        return Cell(last.failure.value, "!", "bad")
    return Cell("no end on record", "▶", "going") if last.ended_at is None else Cell("ended", "○", "quiet")


def _attempts(run: PastRun) -> Section | None:
    if not run.attempts:
        return None
    rows, rented = [], any(one.hosts or one.job for one in run.attempts)
    for one in run.attempts:
        over = one.ended_at is not None
        done = Cell("done", "✓", "good") if over else Cell("no end on record", "▶", "going")
        folder = f"{one.stage.value}/attempt-{one.attempt}"
        rows.append(
            (
                f"{one.stage.value} {one.attempt}",
                Cell(one.failure.value, "!", "bad") if one.failure else done,
                moment(one.started_at),
                duration(one.wall_seconds) if over else NONE,
                str(one.workers),
                dollars(one.cost),
                Cell("record", link=f"{folder}/ledger.json"),
                *((", ".join(one.hosts) or one.job or NONE,) if rented else ()),
                one.message or NONE,
            )
        )
    columns = (
        "attempt",
        "ended as",
        "began",
        ">took",
        ">workers",
        ">cost",
        "file",
        *(("~machines",) if rented else ()),
        "~message",
    )
    failed = sum(one.failure is not None for one in run.attempts)
    line = f"{plural(len(run.attempts), 'attempt')}, {failed or 'none'} of them failed."
    return Section(
        "attempts", "Attempts", (line,), tables=(table("In the order in which they started", columns, rows),)
    )


def _invocations(run: PastRun) -> Section | None:
    if not run.invocations:
        return None
    rows = [
        (
            f"attempt {one.number}",
            state(one.state, f"{one.state}: {one.failure.value}" if one.failure else ""),
            moment(one.scheduled_at) if one.scheduled_at else "by hand",
            moment(one.began_at),
            moment(one.ended_at),
            _late(one.deadline, one.ended_at),
            Cell("flow run", link=one.page) if one.page.startswith(("http://", "https://")) else NONE,
            one.message or NONE,
        )
        for one in run.invocations
    ]
    columns = ("invocation", "ended as", "scheduled", "began", "ended", "deadline", "in Prefect", "~message")
    return Section("invocations", "Invocations", tables=(table("Each time that the run was asked for", columns, rows),))


def _late(deadline: str, ended_at: str | None) -> Cell:
    if ended_at is None:
        return Cell(moment(deadline))
    late = ended_at > deadline
    return Cell(f"{moment(deadline)} missed" if late else "kept", "!" if late else "✓", "bad" if late else "good")


def _seconds(value: float) -> str:
    return f"{value:,.1f}" if value else NONE
