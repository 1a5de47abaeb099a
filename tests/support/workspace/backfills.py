"""A workspace in which spans were run through the pipeline's stages without Prefect, by workers without arithmetic."""

from __future__ import annotations

import pytest

import infra.compute.factory
from infra.store.base import Store
from tasks.contracts.runs import RunPlan
from tasks.planning.next_run import plan_run
from tests.support.fakes.fake_runner import FakeRunner, small_config
from tests.support.fakes.stages import carry_out

ENCODER = "model.scratch.layers=1"


def fake_workers(store: Store, patch: pytest.MonkeyPatch) -> FakeRunner:
    runner = FakeRunner(store)
    patch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner


def run_spans(store: Store, *names: str, overrides: tuple[str, ...] = ()) -> list[RunPlan]:
    """Run the pipeline over these spans, one after the other."""
    plans = []
    for name in names:
        plans.append(plan_run(store, small_config(*overrides), name))
        carry_out(plans[-1])
    return plans
