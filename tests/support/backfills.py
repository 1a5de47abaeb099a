"""A workspace in which spans were run through the pipeline's stages without Prefect, by workers without arithmetic."""

from __future__ import annotations

import pytest

import infra.runner
from infra.store import Store
from tasks.contracts import RunPlan
from tasks.evaluate import evaluate
from tasks.gates import refused
from tasks.health import health
from tasks.infer import infer
from tasks.plan import plan_run, save_plan
from tasks.release import release
from tasks.train import train
from tasks.validate import validate
from tasks.warmup import warmup
from tests.support.fake_runner import FakeRunner, small_config

ENCODER = "model.pretrained=package:none"


def fake_workers(store: Store, patch: pytest.MonkeyPatch) -> FakeRunner:
    runner = FakeRunner(store)
    patch.setattr(infra.runner, "make_runner", lambda config, store, stage: runner)
    return runner


def run_spans(store: Store, *names: str, overrides: tuple[str, ...] = ()) -> list[RunPlan]:
    """Run the pipeline over these spans, one after the other."""
    return [run_plan(store, plan_run(store, small_config(*overrides), name)) for name in names]


def run_plan(store: Store, plan: RunPlan) -> RunPlan:
    save_plan(store, plan)
    validated = validate.fn(plan)
    warm = warmup.fn(plan, validated, after=health.fn(plan, after=validated))
    trained = train.fn(plan, validated, warm)
    judged = evaluate.fn(plan, validated, warm, trained)
    if not refused(judged.verdicts):
        release.fn(plan, validated, trained, judged, infer.fn(plan, validated, warm, trained, after=judged))
    return plan
