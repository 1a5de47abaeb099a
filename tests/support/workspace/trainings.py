"""Trained sides of a comparison, made up: curves without a training."""

from __future__ import annotations

from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import CheckpointRef, CurvePoint, SpanRef
from tasks.contracts.runs import RunPlan
from tasks.laboratory.sides import SideRun, Trained
from tests.support.fakes.fake_runner import small_config

Curve = dict[int, dict[str, float]]  # step -> metrics

CURVE: Curve = {
    0: {"recall@10": 0.25, "auc": 0.5},
    20: {"recall@10": 0.375, "auc": 0.625},
    40: {"recall@10": 0.5, "auc": 0.75},
}
LOSSES: Curve = {step: {"loss": 4.0 - step / 20, "contrastive": 3.0 - step / 20} for step in range(5, 45, 5)}


def changed(curve: Curve, step: int, metric: str, value: float) -> Curve:
    """The curve with one other value."""
    return curve | {step: curve[step] | {metric: value}}


def side(accelerator: str, curve: Curve = CURVE, losses: Curve = LOSSES, answers: str | None = None) -> Trained:
    span = SpanRef(name="2021-Q2", version=1)
    config = small_config(f"accelerator={accelerator}", f"lineage=main-sides-0-{accelerator}")
    plan = RunPlan(
        run_key=f"key-of-{accelerator}",
        span=span,
        window=(span,),
        history=(),
        parent=CheckpointRef(prefix="lineages/main/step-00000010", step=10, sha256="0a"),
        workspace="/nowhere",
        config=config,
    )
    outcome = TrainOutcome(
        checkpoint=CheckpointRef(prefix="lineages/gone/step-00000050", step=50, sha256="0b"),
        model_version="m-1",
        first_step=0,
        last_step=40,
        resumed_at_step=None,
        rows_trained=40,
        pairs_per_second=100.0,
        losses=points(losses),
        curve=points(curve),
        precision="fp32",
        graphs=None,
        environment={},
        answers_key=answers,
    )
    return Trained(SideRun(accelerator, config.seed, plan), accelerator, outcome)


def points(curve: Curve) -> tuple[CurvePoint, ...]:
    return tuple(CurvePoint(step=step, metrics=metrics) for step, metrics in curve.items())
