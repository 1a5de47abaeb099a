"""Pages of the Prefect UI: one when an invocation begins, one for each stage that ended.

Nothing depends on these pages.
"""

from typing import Any

from prefect.artifacts import create_markdown_artifact

from flows.presentation import markdown
from flows.presentation.model import Section, files
from flows.presentation.run import account, origin
from flows.presentation.stages import failure
from flows.presentation.stages.facts import StageFacts, section_of
from flows.presentation.stages.failure import data_message, read_data_failure
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.costs import RunCost
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.stages import Stage
from tasks.foundation.errors import StageError
from tasks.running.stage_output import logger
from tasks.runs.invocations import Invocation
from tasks.runs.ledger import LedgerRecord
from tasks.runs.results import Judgement, Refusal, read_changes
from tasks.runs.run import Run
from tasks.runs.served_targets import of_release
from tasks.runs.snapshot import Snapshot


def links(plan: RunPlan, invocation: Invocation, cost: RunCost) -> None:
    """Make the first page of a run, in the current flow run; log a warning if that fails."""
    try:
        create_markdown_artifact(
            key=f"run-{plan.config.lineage}",
            markdown=markdown.page(origin.begun(plan, invocation, cost), plan.workspace),
            description=f"span {plan.span.name}, attempt {invocation.number}: report, TensorBoard, workspace",
        )
    except Exception as error:  # a page must not stop a run
        logger().warning("the page of links could not be made: %s", error)


def make_stage_page(plan: RunPlan, stage: str, value: Any) -> None:
    """Make the page of a stage that is done, or failed with the error `value`, of the task run in which this is called.

    Its key names stage and lineage alone, so that the history of a page goes over the spans.

    Raises:
        StoreError: a record of the run is not readable; names the file.
    """
    store, of = open_store(plan.workspace), Stage(stage)
    attempt = Run(Snapshot(store), plan.run_key).stage(of).last_number
    create_markdown_artifact(
        key=f"{of}-{plan.config.lineage}",
        markdown=markdown.page(stage_page(store, plan, of, value), plan.workspace),
        description=f"span {plan.span.name}, attempt {attempt} of {of}"
        + (f": {value.failure}" if isinstance(value, StageError) else ""),
    )


def stage_page(store: Store, plan: RunPlan, stage: Stage, value: Any) -> Section:
    """Return the result of a stage (an outcome, a judgement, a release or an error), with its attempts and files.

    Raises:
        StoreError: a record of the run is not readable; names the file.
    """
    run = Run(Snapshot(store, strict=True), plan.run_key)
    attempts = run.stage(stage).attempts
    if isinstance(value, StageError):
        found = read_data_failure(store, attempts[-1]) if attempts else None
        made = failure.section(value.failure, data_message(str(value), found), stage.value)
    else:
        made = section_of(stage, _facts(run, plan, attempts, value))
    whose = f"Span {plan.span.name} v{plan.span.version}, lineage {plan.config.lineage}, run {plan.run_key}."
    parts = (
        *made.parts,
        *account.attempts(attempts),
        *account.failures(store, attempts),
        files((origin.stored(plan, stage), *made.files), origin.places(plan)[0]),
    )
    return made._replace(lines=(*made.lines, whose), parts=parts)


def _facts(run: Run, plan: RunPlan, attempts: tuple[LedgerRecord, ...], value: Any) -> StageFacts:
    store = run.snapshot.store
    facts = StageFacts(plan.workspace, plan, value, attempts, health=run.outcome(Stage.health))
    if isinstance(value, Judgement):
        return facts._replace(outcome=value.outcome, judged=value)
    if isinstance(value, Release | Refusal):
        released = value if isinstance(value, Release) else None
        targets = of_release(store, released.number, plan.config.publish.targets) if released else ()
        serving, judged = run.snapshot.current, run.judgement  # a refresh has no judgement
        return facts._replace(
            outcome=run.outcome(Stage.release),
            release=released,
            release_verdicts=judged.release_verdicts if judged else value.verdicts,
            serving=serving.number if serving else None,
            publications=targets,
            changes=read_changes(store, plan.run_key, released.number if released else None),
        )
    return facts
