"""The origin of a run: its data, its parent checkpoint, its settings, and its invocations.

A run beside its lineage is judged on a branch that no run continues, for an experiment or a backfill.
"""

import datetime as dt
import json
import shlex
from collections.abc import Sequence

from configs.load import leaves, load_config
from flows.presentation.model import Cell, Command, Named, Section, facts, state, table
from flows.presentation.run import planned
from flows.presentation.wording import NONE, moment, with_settings
from infra.store.base import Store
from tasks.contracts.costs import RunCost
from tasks.contracts.jobs import stage_prefix
from tasks.contracts.kinds import run_folder
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import REPORT
from tasks.foundation.errors import StoreError
from tasks.foundation.nouns import plural
from tasks.runs import branches, experiments
from tasks.runs.invocations import Invocation
from tasks.runs.run import Run


def data(plan: RunPlan, parent_run: str | None = None) -> tuple[tuple[str, Cell | str], ...]:
    """Return the facts of a plan: training spans and start. `parent_run` made the parent checkpoint."""
    history = [rows.span.name for rows in plan.history]
    parent = plan.parent
    again = [f"{span.name} v{span.version}" for span in plan.branch.again] if plan.branch is not None else []
    accepted = ", the last accepted checkpoint" if again else ""
    begins = "no model was accepted before" if again else "it begins the lineage"
    return (
        ("run key", Cell(plan.run_key, code=True)),
        ("trains on", ", ".join(f"{span.name} v{span.version}" for span in plan.window)),
        ("trained before", f"{plural(len(history), 'span')}, the last {history[-1]}" if history else "nothing"),
        ("starts from", f"{parent.prefix}, step {parent.step}{accepted}" if parent else f"nothing: {begins}"),
        ("which was made by", Cell(f"run {parent_run}", key=REPORT.key(run=parent_run)) if parent_run else ""),
        ("trained again", f"{', '.join(again)}: the model was rejected" if again else ""),
    )


def places(plan: RunPlan) -> tuple[tuple[str, Cell | str], ...]:
    """Return the addresses of the report, the curves, the workspace and the run's files."""
    links, report = plan.config.links, REPORT.key(run=plan.run_key)
    shown = Cell("", key=report)
    if links.reports is not None:
        shown = Cell("report of the run", link=f"{links.reports.rstrip('/')}/{report}")
    board = Cell("TensorBoard", link=links.tensorboard) if links.tensorboard else Cell("", key=_curves(plan))
    return (
        ("report", shown),
        ("TensorBoard", board),
        ("workspace", Cell(plan.workspace, code=True)),
        ("this run's files", Cell("", key=run_folder(plan.run_key))),
    )


def commands(plan: RunPlan) -> tuple[Command, ...]:
    """Return the commands that show a run in a terminal."""
    report = f"millrace report --run {plan.run_key} --workspace {shlex.quote(plan.workspace)}"
    shown = [Command("The report in a terminal:", (report,))]
    if plan.config.links.tensorboard is None:
        board = f"tensorboard --logdir {shlex.quote(f'{plan.workspace}/{_curves(plan)}')}"
        shown.append(Command("TensorBoard over all attempts of its training:", (board,)))
    return tuple(shown)


def begun(plan: RunPlan, invocation: Invocation, cost: RunCost) -> Section:
    """Return the first page of an invocation: its run, and its expected end."""
    times = (
        ("scheduled", _utc(invocation.scheduled_at) if invocation.scheduled_at else "by hand"),
        ("began", _utc(invocation.began_at)),
        ("expected to end", _utc(expected_end(invocation)) if invocation.expected_seconds is not None else _UNKNOWN),
        ("late after", _utc(invocation.deadline)),
    )
    return Section(
        f"{plan.span.name} attempt {invocation.number}",
        (f"Lineage {plan.config.lineage}, pipeline {plan.config.pipeline}.",),
        tables=(facts((*places(plan), *data(plan), *times)),),
        commands=commands(plan),
        parts=(planned.stages(cost),),
    )


def expected_end(invocation: Invocation) -> str | None:
    """Return the expected end in ISO 8601; None if no similar run is recorded."""
    if invocation.expected_seconds is None:
        return None
    began = dt.datetime.fromisoformat(invocation.began_at)
    return (began + dt.timedelta(seconds=invocation.expected_seconds)).isoformat()


def invocations(all_of: Sequence[Invocation]) -> tuple[Section, ...]:
    """Return each time that the run was started."""
    if not all_of:
        return ()
    rows = [
        (
            f"attempt {each.number}",
            state(each.state, f"{each.state}: {each.failure.value}" if each.failure else ""),
            moment(each.scheduled_at) if each.scheduled_at else "by hand",
            moment(each.began_at),
            moment(each.ended_at) if each.ended_at else f"expected {moment(expected_end(each))}",
            _deadline(each.deadline, each.ended_at),
            Cell("flow run", link=each.page) if each.page.startswith(("http://", "https://")) else NONE,
        )
        for each in all_of
    ]
    columns = ("invocation", "ended as", "scheduled", "began", "ended", "deadline", "in Prefect")
    return (Section("Invocations", id="invocations", tables=(table("", columns, rows),)),)


def settings(plan: RunPlan) -> Section:
    """Return the settings that differ from the base configuration."""
    base, own = leaves(load_config().tree()), leaves(plan.config.tree())
    keys = [key for key in dict.fromkeys([*base, *own]) if base.get(key) != own.get(key)]
    rows = [(Cell(key, code=True), _value(own.get(key)), _value(base.get(key))) for key in keys]
    if not rows:
        return Section("Settings", ("All as in configs/base.yaml.",), id="settings")
    made = table("What differs from configs/base.yaml; config.yaml has all settings", ("key", "~here", "~base"), rows)
    return Section("Settings", id="settings", tables=(made,))


def stored(plan: RunPlan, stage: Stage) -> Named:
    """Return the folder of a stage."""
    return f"files of {stage.value}", stage_prefix(plan.run_key, stage)


_UNKNOWN = "not known: no run like it is on record"


def _curves(plan: RunPlan) -> str:
    return stage_prefix(plan.run_key, Stage.train)


def _utc(iso: str | None) -> str:
    return f"{moment(iso)} UTC"


def _deadline(deadline: str, ended_at: str | None) -> Cell:
    if ended_at is None:
        return Cell(moment(deadline))
    late = ended_at > deadline
    return Cell(f"{moment(deadline)} missed" if late else "kept", "!" if late else "✓", "bad" if late else "good")


def _value(value: object) -> str:
    return NONE if value is None else value if isinstance(value, str) else json.dumps(value)


def branch_section(store: Store, run: Run) -> Section | None:
    """Return the box of a judged run that `millrace run` would not continue; None for other runs.

    Its way on is a backfill, since a run of the branch would be released while the lineage goes on from other weights.
    """
    if run.plan is None or run.judgement is None:
        return None
    try:
        root = branches.root(store, run.lineage)
        if branches.active(store, root) == run.lineage:
            return None
        names = [each.name for each in experiments.read_all(store) if each.run_key == run.run_key]
    except StoreError:  # the readers of these records name it
        return None
    purpose = f"experiment {names[0]}" if names else "a part of a backfill"
    line = f"It is {purpose}, trained on branch {run.lineage}, which runs of lineage {root} do not continue."
    spans = f"--from {run.plan.window[0].name} --to {run.span}"
    again = with_settings(f"millrace backfill {spans} --set lineage={root}", store.uri, run.run_key)
    release = Command("To release it if the gates agree:", tuple(again.splitlines()))
    return Section("Not released", (line,), id="trouble", mood="going", commands=(release,))
