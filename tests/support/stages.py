"""The stages one after the other as the flow calls them, without Prefect."""

from __future__ import annotations

from typing import NamedTuple

from infra.store import open_store
from tasks.contracts import InferOutcome, Release, RunPlan, TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.evaluate import evaluate
from tasks.gates import refused
from tasks.health import health
from tasks.infer import infer
from tasks.plan import save_plan
from tasks.release import release
from tasks.results import Judgement
from tasks.train import train
from tasks.validate import validate
from tasks.warmup import warmup


class Run(NamedTuple):
    """What the stages of a run gave; nothing after a refused gate."""

    validated: ValidateOutcome
    warm: WarmupOutcome
    trained: TrainOutcome
    judged: Judgement
    inferred: InferOutcome | None
    released: Release | None


def carry_out(plan: RunPlan) -> Run:
    """Run all stages of a plan on the runner that `infra.runner.make_runner` gives."""
    save_plan(open_store(plan.workspace), plan)
    validated = validate.fn(plan)
    warm = warmup.fn(plan, validated, health.fn(plan, validated))
    trained = train.fn(plan, validated, warm)
    judged = evaluate.fn(plan, validated, warm, trained)
    if refused(judged.verdicts):
        return Run(validated, warm, trained, judged, None, None)
    inferred = infer.fn(plan, validated, warm, trained, judged)
    return Run(validated, warm, trained, judged, inferred, release.fn(plan, validated, trained, judged, inferred))
