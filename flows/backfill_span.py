"""One span of a backfill, as a flow run of its own: what the pipeline does, as far as it was asked for and is left."""

from __future__ import annotations

from typing import Any

from prefect import flow
from prefect.states import Completed

from flows.cancelling import cancellable
from flows.children import hands
from flows.invoking import invoked
from flows.pages.publish import publish
from infra.store import open_store
from tasks.evaluate import evaluate, forget_outdated
from tasks.gates import refused
from tasks.health import health
from tasks.infer import infer
from tasks.release import release
from tasks.results import Judgement
from tasks.sinks import logger
from tasks.stage import publishing
from tasks.train import train
from tasks.validate import validate
from tasks.warmup import warmup


@flow(name="backfill-span", validate_parameters=False)
@cancellable
def backfill_span(workspace: str, backfill: str, span: str, run_key: str, stages: list[str]) -> None:
    """Started by the flow `backfill` alone, which holds the locks and has the plan.

    Inference does not wait for the evaluation to succeed; but where a release is asked for, vectors are only made with
    a model that the gates let pass, and the release comes after all other spans.
    """
    with_it = hands()
    plan, store, releasing = with_it.plan, open_store(workspace), with_it.span.release == "run"
    with invoked(store, plan), publishing(publish):
        with with_it.step("train"):
            validated = validate(plan)
            warm = warmup(plan, validated, after=health(plan, after=validated))
            trained = train(plan, validated, warm)
        with_it.trained.set()
        with with_it.slot():
            judged = inferred = None
            if "evaluate" in stages or releasing:
                judged = with_it.try_step("evaluate", lambda: evaluate(plan, validated, warm, trained))
            if releasing and judged is not None and refused(judged.verdicts):
                return _rejected(judged, "infer", "release")
            if "infer" in stages or (releasing and judged is not None):
                inferred = with_it.try_step("infer", lambda: infer(plan, validated, warm, trained, after=judged))
            with_it.raise_first()
        if not releasing or judged is None or inferred is None or not with_it.wait_to_release():
            return None
        with with_it.step("release"):
            if forget_outdated(store, plan, judged):
                logger().warning("another release was made meanwhile: the model is evaluated again, beside that one")
                judged = evaluate(plan, validated, warm, trained)
            if not refused(judged.verdicts):
                release(plan, validated, trained, judged, inferred)
                return None
        return _rejected(judged, "release")


def _rejected(judged: Judgement, *left_out: str) -> Any:
    hands().refused(*left_out)
    why = " ".join(verdict.sentence for verdict in judged.verdicts if refused([verdict]))
    return Completed(name="Rejected", message=why)
