"""The flow `backfill-span`: the requested and unfinished stages of one span of a backfill."""

from collections.abc import Collection
from typing import Any

from prefect import flow
from prefect.states import Completed

from flows.orchestration.announcing import announce_budgets, announce_rejection, announce_release
from flows.orchestration.cancelling import cancellable
from flows.orchestration.child_runs import current_span_run
from flows.orchestration.recorded_invocation import record_invocation
from flows.orchestration.run_end import ended, show_rejection
from flows.presentation.run.pages import make_stage_page
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.runs import Release, RunPlan
from tasks.contracts.stages import BackfillPhase, Stage
from tasks.evaluate import evaluate, forget_outdated
from tasks.health import health
from tasks.infer import infer, infer_to_judge
from tasks.monitoring.spending import require_budget
from tasks.publish import publish_release
from tasks.release import release
from tasks.running.context import override_context
from tasks.running.stage_output import logger
from tasks.runs.answers import NOBODY, decide
from tasks.runs.holds import why_waiting
from tasks.runs.results import Judgement, Refusal
from tasks.runs.run import Run
from tasks.train import model_of, train
from tasks.validate import catalogue_of, validate
from tasks.warmup import warmup


@flow(name="backfill-span", validate_parameters=False, on_completion=[show_rejection])
@cancellable
def backfill_span(workspace: str, backfill: str, span: str, run_key: str, stages: list[str]) -> Run | None:
    """Run the stages of one span. Only the flow `backfill` starts this; it holds the locks and the plan.

    Inference runs even if the evaluation failed, unless the span is to be released: then the gates must pass first.
    The release waits for all other spans. A span whose planned dollars exceed a budget fails as CONFIG before its first
    stage.
    """
    run = current_span_run()
    plan, store, releasing = run.plan, open_store(workspace), run.span.release == "run"
    with record_invocation(store, plan) as recorded, override_context(page_maker=make_stage_page):
        with run.step("train"):
            announce_budgets(store, plan, require_budget(store, plan, _wanted(stages)))
            validated = validate(plan)
            warm = warmup(plan, validated, after=health(plan, after=validated))
            trained = train(plan, validated, warm)
        run.trained.set()
        with run.slot():
            judged = inferred = None

            def infer_all() -> InferOutcome:
                return infer(plan, catalogue_of(plan, validated), model_of(trained), warm.compiled, after=judged)

            def judge() -> Judgement:
                vectors = infer_to_judge(plan, catalogue_of(plan, validated), model_of(trained), warm.compiled)
                found = evaluate(plan, validated, warm, trained, vectors)
                if releasing and found.asks:
                    return decide(store, plan, found, "reject", NOBODY, _unasked(plan))
                return found

            if "evaluate" in stages or releasing:
                judged = run.try_step("evaluate", judge)
            if releasing and judged is not None and judged.refused:
                return _rejected(store, plan, judged, "infer", "release")
            if "infer" in stages or (releasing and judged is not None):
                inferred = run.try_step("infer", infer_all)
            run.raise_first()
        if not releasing or judged is None or inferred is None or not run.wait_for_release():
            return None
        with run.step("release"):
            if forget_outdated(store, plan, trained, judged):
                logger().warning("another release was made meanwhile: the model is evaluated again, against that one")
                judged = judge()
            made: Release | Refusal | Judgement = judged
            if not judged.refused:
                made = release(plan, model_of(trained), inferred, judged, (*plan.history, *validated.rows))
        if not isinstance(made, Release):
            return _rejected(store, plan, made, "release")
        if why_waiting(store, made):
            return None
        announce_release(store, plan, made)
        publish_release(store, plan, made)
        return ended(recorded.run)


def _unasked(plan: RunPlan) -> str:
    return (
        "a backfill asks no person about an undecided gate; to release its model: millrace gate --run "
        f"{plan.run_key} --override NAME --reason TEXT"
    )


def _wanted(stages: Collection[str]) -> list[Stage]:
    """Return the requested stages with all that a training takes."""
    return [stage for stage in Stage if stage in stages or stage.traits.backfill is BackfillPhase.training]


def _rejected(store: Store, plan: RunPlan, judged: Judgement | Refusal, *not_run: str) -> Any:
    current_span_run().refuse(*not_run)
    announce_rejection(store, plan, judged)
    return Completed(name="Rejected", message=judged.why)
