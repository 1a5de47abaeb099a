"""The tries of a job, read from DescribeJobs and from the launchers' files."""

from typing import Any

import pytest

from infra.compute.batch.attempts import BatchAttempts, JobPart, streams_of
from infra.compute.batch.job_detail import add_main_node, detail_of
from infra.root_cause import Ending
from tasks.contracts.jobs import JobSpec
from tasks.foundation.errors import FailureClass
from tests.support.fakes.stand_ins import health_spec

T = 1_770_000_000  # seconds since 1970, when the jobs here were made
EXITED = "Essential container in task exited"
HOST_LOST = "Host EC2 (instance i-0abc) terminated."
TIMED_OUT = "Job attempt duration exceeded timeout"
BY_QUEUE = "Canceled by JobStateTimeLimit action due to reason:"
NOT_STARTED = "Task failed to start"
PULL = "CannotPullContainerError: Error response from daemon: manifest for millrace:9 not found"
OOM = "OutOfMemoryError: Container killed due to memory usage"
HOSTS = "arn:aws:ecs:us-east-1:123456789012:container-instance/cluster"


@pytest.fixture
def spec(store) -> JobSpec:
    return health_spec(store, 2, "compute=batch")


def answer(status: str, *attempts: dict[str, Any], identity: str = "job", **more: Any) -> dict[str, Any]:
    return {
        "jobId": identity,
        "jobName": "name",
        "jobQueue": "arn:aws:batch:us-east-1:123456789012:job-queue/q",
        "status": status,
        "createdAt": T * 1000,
        "attempts": list(attempts),
        "container": {"image": "millrace:9"},
        **more,
    }


def attempt(
    start: float | None, stop: float, code: int | None = None, status_reason: str = EXITED, reason: str = "", host="h"
) -> dict[str, Any]:
    """Seconds after T."""
    container = {"exitCode": code, "reason": reason, "logStreamName": f"stream-{stop}"}
    found: dict[str, Any] = {
        "container": {key: value for key, value in container.items() if value not in (None, "")}
        | {"containerInstanceArn": f"{HOSTS}/{host}"},
        "stoppedAt": int((T + stop) * 1000),
        "statusReason": status_reason,
    }
    return found if start is None else found | {"startedAt": int((T + start) * 1000)}


def part(described: dict[str, Any], **more: Any) -> JobPart:
    return JobPart(detail_of(described), **more)


def tries_of(spec, store, *parts: JobPart) -> BatchAttempts:
    tries = BatchAttempts(spec, store, "job", lambda stream: (f"last words in {stream}",))
    tries.see(parts, now=T + 1000)
    return tries


@pytest.mark.parametrize(
    ("described", "failure", "says"),
    [
        (attempt(5, 9, 78), FailureClass.CONFIG, "exited with 78; last lines:\nlast words in stream-9"),
        (attempt(5, 9, 1), FailureClass.CODE, "exited with 1"),
        (attempt(5, 9, 137), FailureClass.HOST, "exited with 137"),
        (attempt(5, 9, None, HOST_LOST), FailureClass.HOST, "the machine was lost: Host EC2 (instance i-0abc)"),
        (attempt(5, 9, 137, EXITED, OOM), FailureClass.OOM, "lower train.batch_rows or infer.batch_sequences"),
        (attempt(5, 9, 143, TIMED_OUT), FailureClass.HANG, "batch.attempt_seconds = 86400"),
        (attempt(None, 9, None, NOT_STARTED, PULL), FailureClass.CONFIG, "image millrace:9 could not be"),
        (
            attempt(None, 9, None, NOT_STARTED, "CannotStartContainerError: x"),
            FailureClass.CONFIG,
            "could not start (C",
        ),
        (attempt(None, 9, None, NOT_STARTED, "DockerTimeoutError: x"), FailureClass.HOST, "says: DockerTimeoutError"),
    ],
)
def test_a_try_without_an_ending_is_explained_by_batchs_reason(spec, store, described, failure, says) -> None:
    (only,) = tries_of(spec, store, part(answer("FAILED", described))).reported
    assert only.failure is failure
    assert says in only.message
    assert only.message.startswith("health: ")


@pytest.mark.parametrize(
    ("ending", "described", "failure"),
    [
        (FailureClass.DATA, attempt(5, 9, 65), FailureClass.DATA),
        (FailureClass.HANG, attempt(5, 9, 71), FailureClass.HANG),
        (FailureClass.CANCELLED, attempt(5, 9, 76, TIMED_OUT), FailureClass.HANG),
        (FailureClass.CANCELLED, attempt(5, 9, None, HOST_LOST), FailureClass.HOST),
        (FailureClass.HOST, attempt(5, 9, 137, EXITED, OOM), FailureClass.OOM),
        (FailureClass.OOM, attempt(5, 9, None, HOST_LOST), FailureClass.OOM),
    ],
)
def test_the_launchers_ending_counts_unless_batchs_reason_explains_it(spec, store, ending, described, failure) -> None:
    record = Ending(failure=ending, message="what the launcher found", node=0, at=T + 9.0)
    store.write(f"{spec.attempt_prefix}/ending.json", record.to_json())
    (only,) = tries_of(spec, store, part(answer("FAILED", described))).reported
    assert only.failure is failure
    assert (only.message == "what the launcher found") == (failure is ending)


def test_the_loss_of_a_machine_that_its_launcher_ended_is_explained_by_the_ending(spec, store) -> None:
    why = Ending(failure=FailureClass.HOST, message="ECC errors", node=0, at=T + 9.0, leaves=True)
    store.write(f"{spec.attempt_prefix}/ending.json", why.to_json())
    (only,) = tries_of(spec, store, part(answer("FAILED", attempt(5, 9, None, HOST_LOST)))).reported
    assert (only.failure, only.message) == (FailureClass.HOST, "ECC errors")


def test_an_ending_belongs_to_its_own_try(spec, store) -> None:
    record = Ending(failure=FailureClass.HANG, message="no step", node=1, at=T + 9.0)
    store.write("runs/run/health/attempt-2/ending.json", record.to_json())
    first, second = tries_of(spec, store, part(answer("FAILED", attempt(5, 9, 70), attempt(20, 30, 71)))).reported
    assert (first.attempt, first.failure) == (1, FailureClass.HOST)
    assert (second.attempt, second.failure, second.message) == (2, FailureClass.HANG, "no step")


@pytest.mark.parametrize(
    ("reason", "failure", "says"),
    [
        ("CAPACITY: no machine in queue q for 60 s", FailureClass.CAPACITY, "health: no machine in queue q for 60 s"),
        ("MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT - too large", FailureClass.CONFIG, "no machine can ever run"),
        (f"{BY_QUEUE} CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY", FailureClass.CAPACITY, "that the queue allows"),
        (f"{BY_QUEUE} MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT", FailureClass.CONFIG, "no machine can ever run"),
        ("millrace reap: no waiter", FailureClass.CANCELLED, "was ended: millrace reap: no waiter"),
    ],
)
def test_the_reason_for_ending_a_job_gives_its_class(spec, store, reason, failure, says) -> None:
    by_queue = "JobStateTimeLimit" in reason  # AWS does not mark those as terminated
    ended = answer("FAILED", statusReason=reason, isTerminated=not by_queue, stoppedAt=(T + 60) * 1000)
    (only,) = tries_of(spec, store, part(ended)).reported
    assert (only.failure, only.queued, only.billable_seconds) == (failure, 60.0, 0.0)
    assert says in only.message


def test_a_job_ended_in_a_try_or_before_the_next_one_is_cancelled(spec, store) -> None:
    running = answer("FAILED", attempt(5, 9, 143), statusReason="enough", isTerminated=True)
    assert [one.failure for one in tries_of(spec, store, part(running)).reported] == [FailureClass.CANCELLED]
    ended = answer("FAILED", attempt(5, 9, 70), statusReason="enough", isTerminated=True, stoppedAt=(T + 19) * 1000)
    first, second = tries_of(spec, store, part(ended)).reported
    assert (first.failure, second.failure) == (FailureClass.HOST, FailureClass.CANCELLED)
    assert (second.attempt, second.queued, second.running) == (2, 10.0, 0.0)


def test_seconds_are_split_at_the_machines_start_and_the_commands_start(spec, store) -> None:
    tries = BatchAttempts(spec, store, "job", lambda stream: ())
    starting = part(answer("STARTING"), machines=2)
    assert tries.see([starting], now=T + 100.0) == []
    assert tries.see([starting], now=T + 105.0) == []
    runs_again = answer("STARTING", attempt(130, 190, 70))
    (first,) = tries.see([part(runs_again, machines=2)], now=T + 200.0)
    (second,) = tries.see([part(answer("SUCCEEDED", attempt(130, 190, 70), attempt(210, 310, 0)), machines=2)], T + 320)
    assert (first.queued, first.booting, first.running) == (100.0, 30.0, 60.0)
    assert (second.queued, second.booting, second.running) == (10.0, 10.0, 100.0)
    assert (second.failure, second.message, second.attempt) == (None, "", 2)
    assert (first.stopped_at, second.stopped_at) == (T + 190, T + 310)
    assert (first.machines, first.billable_seconds) == (2, 2 * 90.0)


def test_time_before_the_command_counts_as_queued_if_its_start_was_not_seen(spec, store) -> None:
    (only,) = tries_of(spec, store, part(answer("SUCCEEDED", attempt(130, 190, 0)))).reported
    assert (only.queued, only.booting, only.running) == (130.0, 0.0, 60.0)


def test_each_try_is_reported_once_after_its_end(spec, store) -> None:
    tries = BatchAttempts(spec, store, "job", lambda stream: ())
    still_running = attempt(5, 9) | {"startedAt": (T + 5) * 1000}
    del still_running["stoppedAt"]
    assert tries.see([part(answer("RUNNING", still_running))], T + 6) == []
    over = part(answer("SUCCEEDED", attempt(5, 9, 0)))
    assert len(tries.see([over], T + 9)) == 1
    assert tries.see([over], T + 9) == []


def test_a_multi_node_job_names_all_hosts_and_the_main_nodes_failure(spec, store) -> None:
    nodes = [detail_of(answer("FAILED", attempt(5, 9, 71, host=f"h{node}"), identity=f"job#{node}")) for node in (0, 1)]
    whole = answer("FAILED", {"stoppedAt": (T + 10) * 1000, "statusReason": EXITED})
    del whole["container"]
    job = add_main_node(detail_of(whole), nodes[0])
    (only,) = tries_of(spec, store, JobPart(job, machines=2, nodes=tuple(nodes))).reported
    assert (only.failure, only.hosts, only.running) == (FailureClass.HANG, ("h0", "h1"), 4.0)


def children(*answers: dict[str, Any]) -> list[JobPart]:
    return [part(one | {"jobId": f"job:{index}"}, index=index) for index, one in enumerate(answers)]


def test_an_arrays_try_is_over_when_every_child_has_ended_it(spec, store) -> None:
    tries = BatchAttempts(spec, store, "job", lambda stream: ())
    assert tries.see(children(answer("RUNNABLE", attempt(5, 9, 70)), answer("RUNNING")), T + 10) == []
    done = answer("SUCCEEDED", attempt(5, 25, 0))
    (first,) = tries.see(children(answer("RUNNING", attempt(5, 9, 70)), done), T + 25)
    (second,) = tries.see(children(answer("SUCCEEDED", attempt(5, 9, 70), attempt(30, 40, 0)), done), T + 40)
    assert (first.failure, first.running, first.machines) == (FailureClass.HOST, 20.0, 2)
    assert "(child 0 of" in first.message
    assert first.billable_seconds == 4 + 20
    assert (second.failure, second.running, second.machines) == (None, 10.0, 1)


def test_an_arrays_cause_is_the_child_with_a_permanent_failure(spec, store) -> None:
    failed = children(
        answer("SUCCEEDED", attempt(5, 9, 70), attempt(10, 20, 0)),
        answer("FAILED", attempt(5, 12, 65)),
        answer("FAILED", attempt(5, 8, 70), attempt(10, 20, 70)),
    )
    first, second = tries_of(spec, store, *failed).reported
    assert (first.failure, second.failure) == (FailureClass.DATA, FailureClass.DATA), "child 1 is missing in both"
    assert "(child 1 of" in second.message


def test_each_child_of_an_array_has_its_own_ending(spec, store) -> None:
    record = Ending(failure=FailureClass.DATA, message="bad rows", node=0, at=T + 9.0)
    store.write(f"{spec.attempt_prefix}/ending-1.json", record.to_json())
    failed = children(answer("SUCCEEDED", attempt(5, 9, 0)), answer("FAILED", attempt(5, 9, 65)))
    (only,) = tries_of(spec, store, *failed).reported
    assert (only.failure, "(child 1 of" in only.message) == (FailureClass.DATA, True)


def test_streams_are_labelled_if_there_are_several() -> None:
    one = answer("RUNNING", container={"logStreamName": "now"}) | {"attempts": [attempt(1, 2, 70)]}
    nodes = tuple(detail_of(one | {"jobId": f"job#{n}", "container": {"logStreamName": f"s{n}"}}) for n in (0, 1))
    assert streams_of([part(one)]) == ({"stream-2": "", "now": ""}, {"now"})
    labels, live = streams_of([JobPart(detail_of(one), machines=2, nodes=nodes)])
    assert (labels["s0"], labels["s1"], live) == ("[node 0] ", "[node 1] ", {"s0", "s1"})
    assert streams_of([part(one, index=3)])[0]["now"] == "[3] "
    over = answer("FAILED", attempt(1, 2, 70), container={"logStreamName": "stream-2"})
    assert streams_of([part(over)]) == ({"stream-2": ""}, set())
