"""The live jobs of a workspace, on the emulator of AWS Batch, beside the plans of their runs."""

from __future__ import annotations

import boto3
import pytest

from configs.load import load_config
from configs.prices import price_of
from configs.schema.config import Config
from infra.compute.batch import listing
from infra.compute.batch.api import Api, WaitPolicy
from infra.compute.batch.end_jobs import live_jobs
from infra.compute.batch.job import tags_of
from infra.compute.batch.listing import JobsReport, list_jobs
from infra.store.directory import DirectoryStore
from tasks.contracts.costs import PlannedRun, RunCost, StageCost
from tasks.contracts.outcomes import Phases
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import PLANNED
from tasks.foundation.clock import now, seconds
from tests.support.cloud.batch import CPU_QUEUE, BatchServer
from tests.support.pages.golden import Golden
from tests.support.workspace.specs import spec_of


@pytest.fixture
def config() -> Config:
    return load_config(None, ["compute=batch", "batch.cpu_instance=m7i.2xlarge"])


def submit(uri: str) -> str:
    spec = spec_of(Stage.validate)
    request = {
        "jobName": "some-job",
        "jobQueue": CPU_QUEUE,
        "jobDefinition": "millrace-validate",
        "containerOverrides": {"command": ["sleep", "60"]},
        "tags": tags_of(spec, uri, "flow-run-1"),
    }
    job_id: str = boto3.client("batch").submit_job(**request)["jobId"]
    return job_id


def plan(store: DirectoryStore, config: Config, paid: float) -> None:
    spec = spec_of(Stage.validate)
    stage = StageCost(
        stage=Stage.validate, instance="m7i.2xlarge", machines=1, phases=Phases(queued=99.0, productive=paid),
        basis="assumed", source="a test", attempts_seen=0, price=price_of("m7i.2xlarge", config.cost), seconds=paid,
        dollars=None,
    )  # fmt: skip
    cost = RunCost(stages=(stage,), seconds=None, dollars=None, unknown=())
    store.create(PLANNED.key(run=spec.run_key), PlannedRun(run_key=spec.run_key, at=now(), cost=cost).to_json())


def after(minutes: float, store: DirectoryStore, config: Config, monkeypatch: pytest.MonkeyPatch) -> JobsReport:
    """The jobs, as they are listed that long after they began."""
    monkeypatch.setattr(listing, "seconds", lambda: seconds() + 60 * minutes)
    return list_jobs(store, config)


def test_a_job_is_listed_with_its_time_and_dollars_beside_the_plan(
    batch: BatchServer, store: DirectoryStore, config: Config, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    job, _ = submit(store.uri), submit("s3://other/workspace")
    plan(store, config, paid=1200.0)
    while not [one for one in live_jobs(Api.connect(WaitPolicy()), [CPU_QUEUE]) if one.now.started_at]:
        pass
    (found,) = after(30, store, config, monkeypatch).jobs
    assert (found.job, found.stage, found.attempt, found.status) == (job, "validate", "1", "RUNNING")
    assert found.machines == "1 x m7i.2xlarge"
    assert found.seconds == pytest.approx(1800, abs=60)
    assert found.planned_seconds == 1200, "without the queue"
    assert found.dollars == pytest.approx(0.4032 * (found.seconds or 0) / 3600, rel=1e-3)
    assert not found.beyond
    (late,) = after(45, store, config, monkeypatch).jobs
    assert late.beyond
    golden(late.sentence, hide=job)


def test_a_short_plan_leaves_a_quarter_of_an_hour_and_no_plan_no_judgement(
    batch: BatchServer, store: DirectoryStore, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit(store.uri)
    while not [one for one in live_jobs(Api.connect(WaitPolicy()), [CPU_QUEUE]) if one.now.started_at]:
        pass
    (unknown,) = after(600, store, config, monkeypatch).jobs
    assert (unknown.planned_seconds, unknown.dollars, unknown.beyond, unknown.machines) == (None, None, False, "")
    plan(store, config, paid=60.0)
    assert [after(minutes, store, config, monkeypatch).jobs[0].beyond for minutes in (10, 17)] == [False, True]


def test_a_job_that_waits_for_a_machine_costs_nothing(
    batch: BatchServer, store: DirectoryStore, config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch.hold_runnable()
    submit(store.uri)
    plan(store, config, paid=60.0)
    (found,) = after(600, store, config, monkeypatch).jobs
    assert (found.started_at, found.seconds, found.dollars, found.beyond) == (None, None, None, False)


def test_without_aws_batch_nothing_is_asked(store: DirectoryStore) -> None:
    assert list_jobs(store, load_config()) == JobsReport(queues=(), jobs=())
