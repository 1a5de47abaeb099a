"""The flow `gate`: release a run that now passes its gates, after a change of the gates or a person's override."""

from prefect import flow

from flows.orchestration.announcing import announce_rejection, announce_release
from flows.orchestration.cancelling import cancellable, end_jobs
from flows.orchestration.lineage_queue import lineage_turn
from flows.orchestration.parameters import ConfigFile, Overrides, Workspace
from flows.orchestration.recorded_invocation import record_invocation
from flows.orchestration.run_end import ended, show_rejection
from infra.store.factory import open_store
from tasks.contracts.runs import Release
from tasks.evaluate import evaluate
from tasks.health import health
from tasks.infer import infer, infer_to_judge
from tasks.judging.judge_again import plan_again
from tasks.publish import publish_release
from tasks.release import release
from tasks.runs import branches
from tasks.runs.holds import why_waiting
from tasks.runs.plan import save_plan
from tasks.runs.results import Judgement, Refusal
from tasks.runs.run import Run
from tasks.train import model_of, train
from tasks.validate import catalogue_of, validate
from tasks.warmup import warmup


@flow(name="gate", flow_run_name="gate {run_key}", on_cancellation=[end_jobs], on_completion=[show_rejection])
@cancellable
def gate(workspace: Workspace, run_key: str, config_file: ConfigFile = "", overrides: Overrides = ()) -> Run:
    """Judge an evaluated run again, and release it if the gates pass. Its stages up to evaluate are done.

    Args:
        workspace: storage of spans, runs and releases; a local directory or s3://bucket/prefix.
        run_key: the run's key, from `millrace history`.
        config_file: a YAML file with the gates; empty: the gates of the run's last judgement.
        overrides: single settings over both.

    Raises:
        ConfigError: the run doesn't exist.
        Conflict: another process works on its lineage.
        StageError: a stage failed.
    """
    store = open_store(workspace)
    plan = plan_again(store, run_key, config_file, overrides)
    with lineage_turn(store, branches.root(store, plan.config.lineage)):
        save_plan(store, plan)
        with record_invocation(store, plan) as recorded:
            validated = validate(plan)
            warm = warmup(plan, validated, after=health(plan, after=validated))
            trained = train(plan, validated, warm)
            model, catalogue = model_of(trained), catalogue_of(plan, validated)
            inferred = infer_to_judge(plan, catalogue, model, warm.compiled)
            judged = evaluate(plan, validated, warm, trained, inferred)
            made: Release | Refusal | Judgement = judged
            if judged.passes:
                inferred = inferred or infer(plan, catalogue, model, warm.compiled, after=judged)
                made = release(plan, model, inferred, judged, (*plan.history, *validated.rows))
            if isinstance(made, Release) and (waits := why_waiting(store, made)):
                return ended(recorded.run, waits)
            if isinstance(made, Release):
                announce_release(store, plan, made)
                publish_release(store, plan, made)
                return ended(recorded.run)
            announce_rejection(store, plan, made)
            return ended(recorded.run, recorded.run.message)
