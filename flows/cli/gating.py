"""`millrace gate`: judge a run again in this process; only if it passes now, run the flow that releases it."""

from collections.abc import Sequence
from typing import Annotated

import typer
from pydantic import Field

from flows.cli.flow_runs import run_flow
from flows.cli.terminal.command import command
from flows.cli.terminal.console import note
from flows.cli.terminal.options import RunOptions
from flows.presentation import wording
from flows.presentation.model import Cell, Parts, Section, table
from flows.presentation.stages.evaluate import answered, by_human, gates
from flows.presentation.wording import NONE
from infra.store.base import Store
from tasks.contracts.evaluation import Override, Verdict, refused
from tasks.contracts.kinds import lineage_lock
from tasks.contracts.runs import Release, RunState
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.judging.judge_again import judge_again, let_pass, plan_again
from tasks.running.lineage_lock import hold_lineage
from tasks.runs import branches, releases
from tasks.runs.audit import audited
from tasks.runs.holds import why_waiting
from tasks.runs.results import Judgement
from tasks.runs.run import Run


class GateOutput(Record):
    """`millrace gate`."""

    run_key: str
    span: str
    state: RunState = Field(description="Released, Held, Rejected, or Unfinished: a gate asks a person")
    sentence: str
    judgement: int = Field(description="number of judgements of the run; one by the same rules is not repeated")
    verdicts: tuple[Verdict, ...] = Field(description="verdicts by the present rules, with all numbers")
    overrides: tuple[Override, ...]
    release: int | None = Field(description="number of the run's release")
    run_url: str | None = Field(description="address of the flow run that made the release; null: none was made now")


def gate_page(output: GateOutput, explain: bool) -> Parts:
    """Yield the verdicts, or the arithmetic of each gate, and the run's outcome."""
    if explain:
        yield from _explained(output.verdicts)
    else:
        yield Section("Gates", by_human(output.overrides), tables=gates(output.verdicts))
    yield output.sentence


def _explained(verdicts: Sequence[Verdict]) -> Parts:
    """Yield the numbers behind each gate's answer."""
    columns = ("gate", ">rows", ">groups", ">value", ">baseline", ">difference", ">std. error", ">at least", ">at most",
               ">threshold", "answer")  # fmt: skip
    yield table("", columns, map(_arithmetic, verdicts))
    yield from (f"- {verdict.sentence}" for verdict in verdicts)
    yield (
        "A group is the rows of one query; groups are drawn with replacement, challenger and baseline on one draw. "
        "At least and at most hold with the gate's confidence each. It passes if the whole interval is on the right "
        "side of the threshold, fails if none of it is, and is undecided otherwise."
    )


@command(gate_page)
def gate(
    options: RunOptions,
    run_key: Annotated[str, typer.Option("--run", help="Key of the run, from millrace history, or its beginning.")],
    override: Annotated[str | None, typer.Option(help="Your name: let a refused run pass. Needs --reason.")] = None,
    reason: Annotated[str | None, typer.Option(help="Reason to let it pass; shown with the release.")] = None,
    explain: Annotated[bool, typer.Option(help="Show the arithmetic of each gate.", show_default=False)] = False,
    verbose: Annotated[bool, typer.Option(help="Show the whole log instead of progress.", show_default=False)] = False,
) -> GateOutput:
    """Judge a run again by other gates, without training; release it if it passes now, which needs workers."""
    store = options.store
    if (override is None) != (reason is None):
        raise ConfigError("give --override NAME and --reason TEXT together: both are recorded with the release")
    plan = plan_again(store, run_key, options.config_file, options.overrides)
    run_key = plan.run_key
    with hold_lineage(store, lineage_lock(branches.root(store, plan.config.lineage)), note):
        judgement = judge_again(store, plan)
        if override is not None and reason is not None:
            with audited(store, "override", run=run_key, span=plan.span.name, name=override, reason=reason):
                judgement = let_pass(store, plan, judgement, override, reason)
    release, url = releases.of_run(store, run_key), None
    if release is None and judgement.passes:
        note(f"run {run_key} passes: its vectors are made and released now, which needs workers")
        done = run_flow("gate", verbose, store.uri, run_key, *options.flow_settings())
        made, url = done.value, done.run_url
        assert isinstance(made, Run)
        verdicts = made.judgement.all_verdicts if made.judgement is not None else ()
        return _output(store, plan.span.name, judgement, verdicts, made.release, url, run_key)
    return _output(store, plan.span.name, judgement, judgement.all_verdicts, release, url, run_key)


def _arithmetic(verdict: Verdict) -> tuple[Cell | str, ...]:
    many = [NONE if count is None else f"{count:,}" for count in (verdict.rows, verdict.groups)]
    numbers = (verdict.value, verdict.baseline, verdict.difference, verdict.standard_error, verdict.low, verdict.high,
               verdict.threshold)  # fmt: skip
    return wording.gate_name(verdict), *many, *(wording.number(each) for each in numbers), answered(verdict)


def _output(
    store: Store, span: str, judgement: Judgement, verdicts: tuple[Verdict, ...], made: Release | None, url: str | None,
    run_key: str,
) -> GateOutput:  # fmt: skip
    release, waits = (made.number, why_waiting(store, made)) if made is not None else (None, "")
    reached = RunState.HELD if waits else RunState.RELEASED
    return GateOutput(
        run_key=run_key,
        span=span,
        state=reached if release is not None else _unreleased(judgement),
        sentence=waits or _sentence(store, judgement, verdicts, release, url),
        judgement=judgement.number,
        verdicts=verdicts,
        overrides=judgement.overrides,
        release=release,
        run_url=url,
    )


def _unreleased(judgement: Judgement) -> RunState:
    return RunState.UNFINISHED if judgement.asks else RunState.REJECTED


def _sentence(
    store: Store, judgement: Judgement, verdicts: tuple[Verdict, ...], release: int | None, url: str | None
) -> str:
    """Return the run's outcome, and say if another champion was released since the comparison."""
    current = releases.current(store)
    then = judgement.outcome.champion_version
    others = current is not None and current.number != release and current.model.version != then
    stale = f" The champion that it is compared with is {then or 'none'}; another is released since." if others else ""
    if release is not None and url is not None and current is not None and current.number != release:
        return (
            f"Released as {release}, and release {current.number} of {current.span.name} serves on; to serve this one: "
            f"millrace rollback --to {release}"
        )
    if release is not None and url is not None:
        return f"Released as {release}.{stale}"
    if release is not None and refused(verdicts):
        stays = f"it is release {release}, which stays; to go back: millrace rollback"
        return f"These gates refuse the run, but {stays}.{stale}"
    if release is not None:
        return f"These gates let the run pass; it is release {release} already.{stale}"
    if judgement.asks:
        where = f" on {judgement.asked.page}" if judgement.asked is not None and judgement.asked.page else ""
        return f"A gate asks a person: answer{where}, or by --override NAME --reason TEXT.{stale}"
    return f"Rejected: nothing was released.{stale}"
