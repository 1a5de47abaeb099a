"""Backfills by workers that fail as a test wants it, and the jobs that they submit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun, State

import infra.compute.factory
from flows.backfill import backfill
from infra.store.directory import DirectoryStore
from tasks.campaigns.campaign import BackfillPlan, Campaign
from tasks.campaigns.planner import plan_backfill
from tasks.contracts.jobs import JobSpec, Waiter
from tests.support.fakes.fake_runner import FakeRunner, small_config
from tests.support.workspace.backfills import ENCODER

QUARTERS = ["2021-Q1", "2021-Q2", "2021-Q3", "2021-Q4"]


class Failing(FakeRunner):
    """Fails once for each (span, stage) in `failing`, and calls `meanwhile` before each job."""

    def __init__(self, store: DirectoryStore) -> None:
        super().__init__(store)
        self.failing: dict[tuple[str, str], BaseException] = {}
        self.meanwhile: Callable[[JobSpec, Waiter], None] = lambda spec, waiter: None

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        self.meanwhile(spec, waiter)
        if (error := self.failing.pop((spec.span.name, spec.stage.value), None)) is not None:
            self.fail(spec.stage, error)
        super().run(spec, waiter, tries)


def workers(store: DirectoryStore, patch: pytest.MonkeyPatch) -> Failing:
    runner = Failing(store)
    patch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner


def started(store: DirectoryStore, first: str, last: str, *overrides: str, **options: object) -> State[Campaign]:
    parameters = {"overrides": (ENCODER, *overrides), **options}
    return backfill(store.uri, first, last, **parameters, return_state=True)  # pyright: ignore[reportCallIssue]


def done(store: DirectoryStore, first: str, last: str, *overrides: str, **options: object) -> Campaign:
    return started(store, first, last, *overrides, **options).result()  # pyright: ignore[reportReturnType]


def planned(store: DirectoryStore, first: str, last: str, *overrides: str, **options: object) -> BackfillPlan:
    return plan_backfill(store, small_config(*overrides), first, last, **options)  # pyright: ignore[reportArgumentType]


def expected_jobs(plan: BackfillPlan) -> Counter[tuple[str, str]]:
    """Return the jobs of the plan: (span, stage)."""
    jobs = [(span.span.name, stage) for span in plan.spans for stage in span.left]
    with_training = [
        (name, early) for name, stage in jobs if stage == "train" for early in ("validate", "health", "warmup")
    ]
    return Counter([*jobs, *with_training])


def jobs(runner: FakeRunner) -> Counter[tuple[str, str]]:
    return Counter((spec.span.name, spec.stage.value) for spec in runner.specs)


def children(store: DirectoryStore, plan: BackfillPlan) -> list[FlowRun]:
    """Return the flow runs of a backfill's spans, by name; other tests' workspaces have a backfill with the same id."""
    by_tag = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"backfill:{plan.id}"]))
    with get_client(sync_client=True) as client:
        found = client.read_flow_runs(flow_run_filter=by_tag)
    mine = [run for run in found if run.parameters["workspace"] == store.uri and run.parent_task_run_id]
    return sorted(mine, key=lambda run: run.name)
