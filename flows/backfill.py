"""The backfill, top to bottom: plan, show the plan, train the spans in order on a branch, release at the end.

Call it like a function (a Prefect server must answer, see infra/prefect_server.py), or deploy it.
"""

from typing import Annotated, Any

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Completed
from pydantic import Field

from configs.load import load_config
from flows.orchestration.backfill_execution import conclude, executing
from flows.orchestration.backfill_page import announce
from flows.orchestration.cancelling import cancellable, end_jobs
from flows.orchestration.child_runs import end_jobs_of_children
from flows.orchestration.parameters import ConfigFile, Overrides, Parallel, Reason, SpanName, Workspace
from flows.orchestration.run_end import show_rejection
from flows.presentation.run.pages import make_stage_page
from flows.refresh import refresh_after_rejection
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.campaigns.campaign import BACKFILL_STAGES, BackfillPlan, BackfillStage, Campaign
from tasks.campaigns.planner import plan_backfill
from tasks.running.context import override_context

Stages = Annotated[tuple[BackfillStage, ...], Field(min_length=1)]


def _range() -> str:
    parameters = flow_run.get_parameters()
    return f"{parameters['first']} to {parameters['last']}"


@flow(
    name="backfill",
    flow_run_name=_range,
    on_cancellation=[end_jobs, end_jobs_of_children],
    on_completion=[show_rejection],
)
@cancellable
def backfill(
    workspace: Workspace,
    first: SpanName,
    last: SpanName,
    stages: Stages = BACKFILL_STAGES,
    parallel: Parallel = 2,
    reason: Reason = "",
    dry_run: bool = False,
    config_file: ConfigFile = "",
    overrides: Overrides = (),
) -> Campaign:
    """Bring a range of spans up to date: train corrected or changed spans again, and run missing stages.

    Spans are trained on a branch, so the lineage stays as it is. When all is done and the gates pass, the last span is
    released, and runs of the lineage continue the branch. If a gate fails, the champion stays and embeds the new items.
    The same backfill, started again, continues with the rest.

    Args:
        workspace: storage of spans, runs and releases; a local directory or s3://bucket/prefix.
        first: the first span, for example 2021-Q1.
        last: the last span; only this one is released.
        stages: stages to run; train includes validate, health and warmup. Release needs evaluate and infer.
        parallel: number of spans evaluated and inferred at once; training is sequential.
        reason: the reason; shown with the backfill later.
        dry_run: only plan; the plan is the table artifact of this flow run.
        config_file: a YAML file with settings that override base.yaml; its path on the worker.
        overrides: single settings over both, as in train.learning_rate=3e-5.

    Raises:
        ConfigError: the range or the stages are not possible.
        Conflict: another process works on the same branch or lineage.
        StageError: a span failed; raised with the class of the first failure, after all other spans ended.
    """
    config = load_config(config_file, overrides)
    store = open_store(workspace)
    plan = plan_backfill(store, config, first, last, stages, reason, parallel)
    if dry_run or not plan.to_do:
        return _result(store, plan, announce(plan, dry_run))

    with executing(store, plan) as execution:
        for span in plan.to_do:
            if not execution.start(span):  # its training failed, and later spans continue from it
                break
        execution.finish()
        if execution.complete and plan.spans[-1].release == "run":
            execution.release()
    return _result(store, plan, conclude(execution))


def _result(store: Store, plan: BackfillPlan, state: Campaign) -> Campaign:
    """Return the flow run's state; its data, which the caller gets, is the backfill's state.

    If the model was refused, the champion first embeds the items of its rows.
    """
    if state.state == "Rejected":
        with override_context(page_maker=make_stage_page):
            refresh_after_rejection(store, plan.config, plan.branch or plan.on)
    name = "Rejected" if state.state == "Rejected" else "Completed"
    completed: Any = Completed(name=name, message=state.sentence or "Only planned.", data=state)
    return completed
