"""The report of one run: one HTML file that needs nothing beside it, made from the workspace alone.

Also of a run that failed or goes on: what stopped it, its class, and what to do.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import ValidationError

from flows.reports.page import Tile, render
from flows.reports.run_sections import sections
from flows.reports.tables import Cell, state
from flows.reports.wording import NONE, count, dollars, duration, moment, plural, share
from infra.store import Store
from tasks.contracts import Check, CheckpointState, InferOutcome, Stage
from tasks.errors import POLICIES, RUNBOOK, FailureClass, StoreError
from tasks.findings import last_findings
from tasks.history import PastRun, read_run
from tasks.lineage import STATE


class Trouble(NamedTuple):
    """The box at the top of a run that did not end in a release."""

    title: str
    mood: str
    lines: tuple[str, ...] = ()
    message: str = ""
    advice: str = ""
    command: str = ""


def report_key(run_key: str) -> str:
    """Where the report of a run lies."""
    return f"runs/{run_key}/report.html"


def write_run_report(store: Store, run_key: str) -> str | None:
    """Make the report of a run and put it beside the run's records; returns its key, None where that failed.

    Never raises: what went wrong is in the log, and the run's own end is not touched by it.
    """
    from tasks.sinks import logger  # Prefect, which a page needs not

    try:
        store.write(report_key(run_key), run_html(store, run_key))
    except Exception as error:
        logger().warning("the report of run %s could not be made: %s: %s", run_key, type(error).__name__, error)
        return None
    return report_key(run_key)


def run_html(store: Store, run_key: str) -> bytes:
    """The report of one run as HTML.

    Raises:
        ConfigError: there is no such run.
        StoreError: the workspace could not be read.
    """
    run, problems = read_run(store, run_key)
    refusals, unreadable = _refusals(store, run)
    return render(
        "run.html.jinja",
        f"{run.span}: {run.state} (run {run_key})",
        store.uri,
        span=run.span,
        run_key=run_key,
        lineage=run.lineage,
        pipeline=run.plan.config.pipeline if run.plan else "",
        state=state(run.state, f"{run.state} as {run.release.number}" if run.release else ""),
        summary=_summary(run),
        all_tiles=_tiles(run),
        trouble=_trouble(store, run),
        problems=(*problems, *unreadable),
        sections=sections(run, refusals, _parent_run(store, run)),
    )


def _summary(run: PastRun) -> str:
    """One sentence that tells the whole."""
    if not run.began_at:
        return "It was planned, and nothing of it has begun."
    took = f"{duration(run.wall_seconds)} of attempts, begun {moment(run.began_at)}"
    match run.state:
        case "Released" if run.release:
            return (
                f"Model {run.release.model.version} and its {count(run.release.vectors)} vectors became release "
                f"{run.release.number} at {moment(run.release.created_at)}, after {took}."
            )
        case "Rejected":
            return f"The gates refused the model, so the champion stays. It took {took}."
        case "Running":
            return f"It goes on, or its orchestrator was killed: {took}."
        case "Failed" | "Cancelled":
            stopped = f" in {run.attempts[-1].stage.value}" if run.attempts and run.attempts[-1].failure else ""
            return f"It stopped{stopped} after {took}. What was finished is kept."
        case _:
            return f"It ended before a release or a rejection, after {took}."


def _tiles(run: PastRun) -> list[Tile]:
    summed, inferred = run.totals, run.outcome(Stage.infer)
    failed = summed.attempts - summed.succeeded
    vectors = inferred.vectors if isinstance(inferred, InferOutcome) else 0
    tiles = [
        Tile("Time", Cell(duration(run.wall_seconds)), f"begun {moment(run.began_at)}" if run.began_at else ""),
        Tile("Goodput", Cell(share(summed.goodput)), f"{duration(summed.seconds.queued)} of it queued"),
        Tile("Attempts", Cell(str(len(run.attempts))), f"{failed} failed" if failed else "none failed"),
        Tile("Cost", Cell(dollars(summed.cost)), "" if summed.cost else "no prices configured"),
    ]
    if run.judged is not None:
        for verdict in run.judged.verdicts[:2]:
            value = NONE if verdict.value is None else f"{verdict.value:.4f}"
            beside = f"champion {verdict.baseline:.4f}" if verdict.baseline is not None else ""
            tiles.append(Tile(verdict.metric, Cell(value), beside))
    if vectors:
        tiles.append(Tile("Vectors", Cell(count(vectors)), f"release {run.release.number}" if run.release else ""))
    return tiles


def _trouble(store: Store, run: PastRun) -> Trouble | None:
    match run.state:
        case "Released":
            return None
        case "Rejected":
            advice = (
                "Nothing has to be mended: the champion and its vectors stay, and the next span trains on from here. "
                f"Look at the slices and the data below; {RUNBOOK} says how to find what made the model worse."
            )
            return Trouble("Rejected by the gates", "refused", message=run.message, advice=advice)
        case "Running":
            return Trouble("It goes on", "going", (_going_on(run),))
        case "Failed" | "Cancelled":
            return _failed(store, run)
        case _:
            return Trouble(
                "Not finished",
                "going",
                advice="Run the span again, and it goes on from here.",
                command=_again(store, run),
            )


def _failed(store: Store, run: PastRun) -> Trouble:
    failure = run.failure or FailureClass.CODE
    policy = POLICIES[failure]
    stage = f" in {run.attempts[-1].stage.value}" if run.attempts and run.attempts[-1].failure else ""
    tries = plural(sum(one.failure is not None for one in run.attempts), "failed attempt")
    if failure is FailureClass.CANCELLED:
        advice = "Nothing has to be mended. To go on from here, run the span again:"
    elif policy.transient:
        advice = (
            f"{failure} passes by itself as a rule, and was tried again as often as retry.attempts allows. "
            f"See {RUNBOOK}, {failure}; then run the span again, which goes on from here with as many tries:"
        )
    else:
        advice = (
            f"{failure} comes again until its cause is mended, so no retry was made. See {RUNBOOK}, {failure}; "
            "mend what the message names, then run the span again, which goes on from here:"
        )
    lines = (f"Class {failure}: {policy.meaning}. {tries.capitalize()}; exit code {policy.exit_code}.",)
    title = f"{'Cancelled' if failure is FailureClass.CANCELLED else f'Failed with {failure}'}{stage}"
    mood = "going" if failure is FailureClass.CANCELLED else "bad"
    return Trouble(title, mood, lines, run.message, advice, _again(store, run))


def _going_on(run: PastRun) -> str:
    open_ones = [one for one in run.attempts if one.ended_at is None]
    last = run.invocations[-1] if run.invocations else None
    doing = (
        f"{open_ones[-1].stage.value} {open_ones[-1].attempt} since {moment(open_ones[-1].started_at)}"
        if open_ones
        else ""
    )
    deadline = f"the deadline is {moment(last.deadline)}" if last else ""
    return "; ".join(filter(None, (doing, deadline, "if nobody works on it, run the span again"))).capitalize() + "."


def _again(store: Store, run: PastRun) -> str:
    """The command that goes on with the run, with its own settings where they are a file on this machine."""
    local = "://" not in store.uri
    settings = [f"--config {store.uri}/runs/{run.run_key}/config.yaml"] if local else []
    return " \\\n  ".join([f"millrace run --span {run.span}", f"--workspace {store.uri}", *settings])


def _refusals(store: Store, run: PastRun) -> tuple[tuple[Check, ...], tuple[str, ...]]:
    """What made health refuse its machines the last time; nothing once it was content."""
    if Stage.health in run.results:
        return (), ()
    try:
        return last_findings(store, [one for one in run.attempts if one.stage is Stage.health]), ()
    except StoreError as error:
        return (), (str(error),)


def _parent_run(store: Store, run: PastRun) -> str | None:
    """The run that made the parent checkpoint; None where there is none, or its state is gone."""
    if run.plan is None or run.plan.parent is None:
        return None
    try:
        return CheckpointState.model_validate_json(store.read(f"{run.plan.parent.prefix}/{STATE}")).run_key
    except (FileNotFoundError, ValidationError):
        return None
