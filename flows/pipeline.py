"""The pipeline over one span, top to bottom: the steps and their order, without their details.

Call it like a function (a Prefect server must answer, see infra/prefect_server.py), or deploy it.
"""

import importlib
from functools import partial
from typing import Any

from prefect import flow
from prefect.runtime import flow_run
from prefect.states import Completed

from configs.load import load_config
from flows.orchestration.announcing import (
    announce_budgets,
    announce_plan,
    announce_rejection,
    announce_release,
    take_up_undecided,
)
from flows.orchestration.asking import answered
from flows.orchestration.cancelling import cancellable, end_jobs
from flows.orchestration.lineage_queue import lineage_turn
from flows.orchestration.parameters import AnySpan, ConfigFile, Overrides, TimeZone, Workspace
from flows.orchestration.recorded_invocation import record_invocation
from flows.orchestration.run_end import ended, show_rejection
from flows.refresh import refresh_after_rejection
from infra.store.factory import open_store, require_fit
from tasks.contracts.runs import Release, RunPlan
from tasks.evaluate import evaluate
from tasks.health import health
from tasks.infer import infer, infer_to_judge
from tasks.monitoring.spending import require_budget
from tasks.planning.next_run import due_span, missed, plan_run, require_arrived, run_of
from tasks.planning.start import adopt_branch, next_start
from tasks.publish import publish_release
from tasks.release import release
from tasks.running.server_presence import repeat_until_served
from tasks.runs import releases
from tasks.runs.holds import why_waiting
from tasks.runs.plan import NothingToDo, save_plan
from tasks.runs.results import Judgement, Refusal
from tasks.runs.run import Run
from tasks.train import model_of, train
from tasks.validate import catalogue_of, validate
from tasks.warmup import warmup

DECIDING = "flows.laboratory.deciding"  # without it, the configuration refuses `decide.scheduled`


def _name_before_the_plan() -> str:
    parameters = flow_run.get_parameters()
    if parameters["span"] or not parameters["scheduled_in"]:
        return parameters["span"] or "next span"
    return f"span due {flow_run.scheduled_start_time:%Y-%m-%d %H:%M} UTC"


@flow(name="pipeline", flow_run_name=_name_before_the_plan, on_cancellation=[end_jobs], on_completion=[show_rejection])
@cancellable
def pipeline(
    workspace: Workspace,
    span: AnySpan = "",
    config_file: ConfigFile = "",
    overrides: Overrides = (),
    scheduled_in: TimeZone = "",
) -> Run:
    """Train on a span from the lineage's last accepted checkpoint. Release model and vectors if the gates agree.

    Finished stages are not run again: they show as Cached. If the model is refused, the run ends in the state Rejected,
    with the run as its data; its span is trained again with the next one. If an undecided gate asks a person, a
    deployed run is suspended, and any other waits, until the form of its page is answered. While a person holds
    releases, a run with an accepted model ends as Held: its release waits. A scheduled run first runs missed earlier
    spans, and ends as NothingToDo if its span is skipped or waits for more rows; with `decide.scheduled`, as Postponed
    if training is not worth it yet.

    Args:
        workspace: storage of spans, runs and releases; a local directory or s3://bucket/prefix.
        span: for example 2022-Q4; empty: the oldest span not yet trained.
        config_file: a YAML file with settings that override base.yaml; its path on the worker.
        overrides: single settings over both, as in train.learning_rate=3e-5.
        scheduled_in: time zone, set by the schedule: the run takes the last span that ended before its scheduled time.

    Raises:
        NothingToDo: no span was named, and all spans are trained.
        Conflict: another process works on this lineage.
        StageError: planning or a stage failed, with its failure class.
    """
    config = load_config(config_file, overrides)
    store = open_store(workspace)
    require_fit(store)
    scheduled = flow_run.scheduled_start_time if scheduled_in else None  # never now: a retry takes the same span
    if scheduled is not None and scheduled_in:
        span = span or due_span(store, scheduled, scheduled_in)
        for earlier in missed(store, config, span):
            if earlier != span:
                zone = scheduled_in if config.decide.scheduled else ""  # then each of them is decided
                repeat_until_served(partial(pipeline, workspace, earlier, config_file, overrides, zone))
        span = run_of(store, config, require_arrived(store, span))
    with lineage_turn(store, config.lineage):
        take_up_undecided(store, config)
        try:
            plan = plan_run(store, config, span or None)
        except NothingToDo as reason:
            if scheduled is None:
                raise
            nothing: Any = Completed(name="NothingToDo", message=str(reason), data=None)
            return nothing
        if scheduled is not None and config.decide.scheduled:
            decided = importlib.import_module(DECIDING).follow_decision(store, config, plan)
            if not isinstance(decided, RunPlan):
                return decided
            plan = decided
        announce_budgets(store, plan, require_budget(store, plan))
        save_plan(store, plan)
        with record_invocation(store, plan, scheduled.isoformat() if scheduled else None) as recorded:
            announce_plan(store, plan)

            validated = validate(plan)
            healthy = health(plan, after=validated)
            warm = warmup(plan, validated, after=healthy)
            trained = train(plan, validated, warm)
            adopt_branch(store, plan)
            model, catalogue = model_of(trained), catalogue_of(plan, validated)
            inferred = infer_to_judge(plan, catalogue, model, warm.compiled)
            judged = answered(store, plan, evaluate(plan, validated, warm, trained, inferred))
            made: Release | Refusal | Judgement = judged
            if not judged.refused or releases.of_run(store, plan.run_key):  # a release outlives stricter gates
                inferred = inferred or infer(plan, catalogue, model, warm.compiled, after=judged)
                made = release(plan, model, inferred, judged, (*plan.history, *validated.rows))
            if isinstance(made, Release) and (waits := why_waiting(store, made)):
                return ended(recorded.run, waits)
            if isinstance(made, Release):
                announce_release(store, plan, made)
                publish_release(store, plan, made)
                return ended(recorded.run)
            following = next_start(store, config)
            announce_rejection(store, plan, made, following)
            refresh_after_rejection(store, config, plan.config.lineage)
            return ended(recorded.run, f"{recorded.run.message} {following}")
