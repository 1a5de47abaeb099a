"""Stage release, control side: the model exported and probed by a worker, then bound to its vectors and published."""

from __future__ import annotations

from infra.store import open_store
from tasks import releases
from tasks.contracts import InferOutcome, Release, ReleaseInputs, ReleaseOutcome, RunPlan, TrainOutcome, ValidateOutcome
from tasks.results import Judgement
from tasks.stage import run_stage, stage_task
from tasks.train import model_of


@stage_task
def release(
    plan: RunPlan, validated: ValidateOutcome, trained: TrainOutcome, judged: Judgement, inferred: InferOutcome
) -> Release:
    """The release of this run; the current one too, unless a later one took its place or it was rolled back."""
    model = model_of(trained)
    inputs = ReleaseInputs(model=model, vectors=inferred.prefix, rows=validated.rows[-1])
    exported = run_stage(plan, inputs, ReleaseOutcome)
    return releases.publish(
        open_store(plan.workspace),
        span=plan.span,
        run_key=plan.run_key,
        model=model,
        model_prefix=exported.model,
        vectors_prefix=inferred.prefix,
        vectors=inferred.vectors,
        metrics=judged.outcome.challenger,
    )
