"""Jobs found by their tags and ended, on the emulator of AWS Batch."""

from dataclasses import replace
from typing import Any

import boto3
import pytest

from infra.compute.batch.api import Api, WaitPolicy
from infra.compute.batch.claim import Claim, make_claim, read_claim
from infra.compute.batch.end_jobs import attempt_prefix_of, end_job, flow_run_of, live_jobs
from infra.compute.batch.job import tags_of
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.foundation.errors import ConfigError
from tests.support.cloud.batch import ACCELERATOR_QUEUE, CPU_QUEUE, BatchServer
from tests.support.workspace.specs import spec_of

PREFIX = "runs/f00d/validate/attempt-1"


def submit(store: DirectoryStore, client: Any = None, **more: Any) -> str:
    request = {
        "jobName": "some-job",
        "jobQueue": CPU_QUEUE,
        "jobDefinition": "millrace-validate",
        "containerOverrides": {"command": ["sleep", "60"]},
        "tags": tags_of(spec_of(Stage.validate), store.uri, "flow-run-1"),
    }
    job_id: str = (client or boto3.client("batch")).submit_job(**{**request, **more})["jobId"]
    return job_id


def test_live_jobs_of_the_project_are_found_on_all_queues_with_their_tags(batch: BatchServer, store) -> None:
    mine = submit(store)
    array = submit(
        store,
        jobQueue=ACCELERATOR_QUEUE,
        shareIdentifier="millrace",
        jobDefinition="millrace-infer",
        arrayProperties={"size": 2},
    )
    submit(store, tags={"team": "other"})
    over = submit(store)
    api = Api.connect(WaitPolicy())
    api.terminate(over, "enough")
    while over in [job.id for job in live_jobs(api, [CPU_QUEUE])]:
        pass
    found = live_jobs(api, [CPU_QUEUE, ACCELERATOR_QUEUE, CPU_QUEUE])
    assert [job.id for job in found] == [mine, array]
    first = found[0]
    assert (first.name, first.queue) == ("some-job", CPU_QUEUE)
    assert (flow_run_of(first), attempt_prefix_of(first)) == ("flow-run-1", PREFIX)


def test_many_jobs_are_listed_and_described_in_pages(batch: BatchServer, store) -> None:
    batch.hold_runnable()
    client = boto3.client("batch")
    for _ in range(105):
        submit(store, client)
    assert len(live_jobs(Api.connect(WaitPolicy()), [CPU_QUEUE])) == 105
    described = [len(call["request"]["jobs"]) for call in batch.calls("DescribeJobs")]
    assert sum(described) == 105
    assert max(described) <= 100


@pytest.mark.parametrize(("job_id", "state"), [("this one", "ending"), (None, "ending"), ("another one", "submitted")])
def test_ending_a_job_marks_its_claim_unless_it_is_another_jobs(batch, store, job_id, state) -> None:
    mine = submit(store)
    claim = Claim(
        name="some-job",
        state="submitted",
        job_id=mine if job_id == "this one" else job_id,
        queue=CPU_QUEUE,
        flow_run="",
        claimed_at="now",
    )
    make_claim(store, PREFIX, claim)
    api = Api.connect(WaitPolicy())
    (job,) = live_jobs(api, [CPU_QUEUE])
    end_job(api, store, job, "no waiter")
    changed = read_claim(store, PREFIX)
    assert changed is not None
    assert (changed.state, changed.job_id) == (state, mine if state == "ending" else job_id)
    while live_jobs(api, [CPU_QUEUE]):
        pass
    assert batch.jobs()[0]["statusReason"] == "no waiter"


def test_a_job_without_a_claim_or_with_odd_tags_is_ended_too(batch, store) -> None:
    submit(store, tags={"millrace": "millrace", "millrace-stage": "bake"})
    api = Api.connect(WaitPolicy())
    (job,) = live_jobs(api, [CPU_QUEUE])
    assert (flow_run_of(job), attempt_prefix_of(job)) == ("", None)
    end_job(api, store, job, "no waiter")
    end_job(api, store, replace(job, id="forgotten"), "no waiter")
    while live_jobs(api, [CPU_QUEUE]):
        pass


def test_a_queue_that_does_not_exist_is_named(batch) -> None:
    with pytest.raises(ConfigError, match="'nowhere'"):
        live_jobs(Api.connect(WaitPolicy()), ["nowhere"])
