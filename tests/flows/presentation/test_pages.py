"""The pages as a real Prefect server keeps them, made by stages that do no arithmetic. Takes about half a minute."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from prefect import flow
from prefect.client.schemas.objects import Artifact

import infra.compute.factory
from flows.presentation.run.pages import links, make_stage_page
from infra.store.directory import DirectoryStore
from infra.store.factory import open_store
from tasks.contracts.jobs import JobSpec, Progress, Waiter
from tasks.contracts.outcomes import Check
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import FINDINGS
from tasks.evaluate import evaluate
from tasks.foundation.errors import CancelledError, DataError, HostError
from tasks.health import health
from tasks.infer import infer
from tasks.monitoring.estimates import run_cost
from tasks.planning.next_run import plan_run
from tasks.release import release
from tasks.running.context import override_context
from tasks.runs import invocations
from tasks.runs.host_records import Findings
from tasks.runs.plan import save_plan
from tasks.train import model_of, train
from tasks.validate import catalogue_of, validate
from tasks.warmup import warmup
from tests.support.fakes.fake_runner import FakeRunner, small_config
from tests.support.processes.prefect_server import PrefectServer

SECONDS = 30.0


class ReportingRunner(FakeRunner):
    """Reports the progress of training, and calls `meanwhile` before each job."""

    meanwhile: Callable[[JobSpec], None] = staticmethod(lambda spec: None)

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        self.meanwhile(spec)
        if spec.stage is Stage.train:
            waiter.progress(Progress(what="train", done=120, total=400, note="loss 1.93"))
        super().run(spec, waiter, tries)


@flow
def whole(plan: RunPlan) -> None:
    """All stages of a run, with their pages."""
    store = open_store(plan.workspace)
    links(plan, invocations.begin(store, plan), run_cost(store, plan))
    with override_context(page_maker=make_stage_page):
        validated = validate(plan)
        warm = warmup(plan, validated, after=health(plan, after=validated))
        trained = train(plan, validated, warm)
        judged = evaluate(plan, validated, warm, trained)
        model = model_of(trained)
        inferred = infer(plan, catalogue_of(plan, validated), model, warm.compiled, after=judged)
        release(plan, model, inferred, judged, (*plan.history, *validated.rows))


@pytest.fixture
def runner(
    store: DirectoryStore, prefect: PrefectServer, short_delays: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ReportingRunner]:
    runner = ReportingRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    with prefect.in_use():
        yield runner


def carry_out(store: DirectoryStore) -> RunPlan:
    plan = plan_run(store, small_config())
    save_plan(store, plan)
    whole(plan)
    return plan


def artifacts(prefect: PrefectServer, *kinds: str) -> list[Artifact]:
    """Those of these kinds of the last flow run, oldest first."""
    return [one for one in prefect.artifacts() if one.type in kinds]


def progress_until(prefect: PrefectServer, *expected: str) -> list[Artifact]:
    """The progress artifacts, once their descriptions are these: a thread of its own makes them."""
    deadline = time.monotonic() + SECONDS
    while True:
        found = artifacts(prefect, "progress")
        if sorted(str(one.description) for one in found) == sorted(expected):
            return found
        assert time.monotonic() < deadline, [one.description for one in found]
        time.sleep(0.1)


def test_every_stage_has_a_page_at_its_task_run(prefect, store, runner):
    carry_out(store)
    pages = artifacts(prefect, "markdown")
    assert [page.key for page in pages] == ["run-main", *(f"{stage}-main" for stage in Stage)]
    assert {str(page.description).split()[-1] for page in pages[1:]} == set(Stage)
    runs = {run.name: run.id for run in prefect.task_runs(prefect.last_run(), 7)}
    assert [page.task_run_id for page in pages] == [None, *(runs[f"{stage} 2026-W46"] for stage in Stage)]
    assert all(str(page.data).startswith("# ") for page in pages)


def test_a_cached_stage_has_no_new_page(prefect, store, runner):
    plan = carry_out(store)
    whole(plan)
    assert [page.key for page in artifacts(prefect, "markdown")] == ["run-main"]
    assert artifacts(prefect, "progress") == []


def test_progress_belongs_to_its_task_run_and_ends_at_100_percent(prefect, store, runner):
    carry_out(store)
    found = progress_until(prefect, "train 2026-W46: done, step 1 of 1", "infer 2026-W46: done, text 1 of 1")
    assert {one.key for one in found} == {"train-progress-main", "infer-progress-main"}
    assert [one.data for one in found] == [100.0, 100.0]
    runs = {run.id: run.name for run in prefect.task_runs(prefect.last_run(), 7)}
    assert {runs[one.task_run_id] for one in found if one.task_run_id} == {"train 2026-W46", "infer 2026-W46"}


def test_progress_of_a_failed_attempt_keeps_its_last_step(prefect, store, runner):
    runner.fail(Stage.infer, HostError("gone"))
    carry_out(store)
    progress_until(
        prefect,
        "train 2026-W46: done, step 1 of 1",
        "infer 2026-W46: HOST after text 1 of 1",
        "infer 2026-W46: done, text 1 of 1",
    )


def test_a_run_works_without_its_page_of_links(prefect, store, runner, monkeypatch):
    monkeypatch.setattr("flows.presentation.run.origin.begun", lambda plan, invocation: 1 / 0)
    carry_out(store)
    assert [page.key for page in artifacts(prefect, "markdown")] == [f"{stage}-main" for stage in Stage]


def test_every_failed_attempt_has_its_page(prefect, store, runner, golden):
    found = Check(
        name="ecc",
        passed=False,
        severity="critical",
        observed=7,
        sentence="7 errors",
        host="h-1",
        action="exclude host",
    )

    def refused(spec: JobSpec) -> None:
        if (spec.stage, spec.attempt) == (Stage.health, 1):
            store.write(FINDINGS.of(spec), Findings(checks=(found,)).to_json())

    runner.meanwhile = refused
    runner.fail(Stage.health, HostError("h-1 was | refused"))
    runner.fail(Stage.train, DataError("2026-W46 has | no rows"))
    with pytest.raises(DataError):
        carry_out(store)
    pages = [page for page in artifacts(prefect, "markdown") if page.key in ("health-main", "train-main")]
    failed = {str(page.description): str(page.data) for page in pages}
    assert [description.split(" of ")[1] for description in failed] == ["health: HOST", "health", "train: DATA"]
    golden(*failed.values(), hide=r"\d{4}-\d\d-\d\d \d\d:\d\d")


def test_a_cancelled_stage_has_no_page(prefect, store, runner):
    runner.fail(Stage.health, CancelledError("by a user"))
    with pytest.raises(CancelledError):
        carry_out(store)
    assert [page.key for page in artifacts(prefect, "markdown")] == ["run-main", "validate-main"]
