"""Jobs as DescribeJobs and ListJobs show them. What isn't known yet is left out, as AWS does."""

from __future__ import annotations

from collections import Counter

from tests.emulator.engine import plans
from tests.emulator.engine.aws import Document, arn
from tests.emulator.engine.records import STATES, Attempt, Container, Job


def job_arn(job: Job) -> str:
    return arn("job", job.id)


def describe(job: Job) -> Document:
    """A job as a whole: for a multi-node one its attempts are those of the main node."""
    described = _common(job) | {
        "status": job.status,
        "attempts": [_attempt(one, one.main) for one in job.attempts if one.over],
        **_given(statusReason=job.status_reason, startedAt=job.started_at, stoppedAt=job.stopped_at),
    }
    if job.definition.multinode:
        described["nodeProperties"] = _node_properties(job)
    else:
        attempt = job.attempts[-1] if job.attempts else None
        described["container"] = _container(job, attempt and attempt.main)
    if job.children:
        counts = Counter(child.status for child in job.children)
        described["arrayProperties"] = {
            "statusSummary": {state: counts[state] for state in STATES},
            "statusSummaryLastUpdatedAt": max(child.stopped_at or child.created_at for child in job.children),
            "size": len(job.children),
        }
    if job.index is not None and job.parent:
        described["arrayProperties"] = {"size": len(job.parent.children), "index": job.index, "statusSummary": {}}
    return described


def describe_node(job: Job, node: int) -> Document:
    """A node of a multi-node job, `<job id>#<node>`."""
    attempt = job.attempts[-1] if job.attempts else None
    container = attempt.containers[node] if attempt else None
    attempts = [_attempt(one, one.containers[node]) for one in job.attempts if one.containers[node].over]
    return _common(job) | {
        "jobId": job.container_id(node),
        "jobArn": arn("job", job.container_id(node)),
        "status": _node_status(job, node),
        "attempts": attempts,
        "container": _container(job, container),
        "nodeDetails": {"nodeIndex": node, "isMainNode": node == job.main},
        **(
            _given(statusReason=container.status_reason, startedAt=container.started_at, stoppedAt=container.stopped_at)
            if container
            else {}
        ),
    }


def summarize(job: Job) -> Document:
    summary = {
        "jobArn": job_arn(job),
        "jobId": job.id,
        "jobName": job.name,
        "createdAt": job.created_at,
        "jobDefinition": job.definition.arn,
        "status": job.status,
        **_flags(job),
        **_given(
            shareIdentifier=job.request.get("shareIdentifier"),
            statusReason=job.status_reason,
            startedAt=job.started_at,
            stoppedAt=job.stopped_at,
        ),
    }
    if job.children:
        summary["arrayProperties"] = {"size": len(job.children)}
    if job.definition.multinode:
        summary["nodeProperties"] = {"numNodes": job.nodes}
    if job.attempts and not job.definition.multinode:
        summary["container"] = _outcome(job.attempts[-1].main)
    return summary


def _common(job: Job) -> Document:
    return {
        "jobName": job.name,
        "jobId": job.id,
        "jobArn": job_arn(job),
        "jobQueue": job.queue.arn,
        "createdAt": job.created_at,
        "retryStrategy": {"attempts": 1, "evaluateOnExit": [], **_lower_actions(job.retry)},
        "jobDefinition": job.definition.arn,
        "tags": job.tags,
        "platformCapabilities": ["EC2"],
        "propagateTags": job.request.get("propagateTags", False),
        **_flags(job),
        **({"timeout": job.timeout} if job.timeout else {}),
        **_given(
            shareIdentifier=job.request.get("shareIdentifier"),
            schedulingPriority=job.request.get("schedulingPriorityOverride"),
        ),
    }


def _flags(job: Job) -> Document:
    kind = job.ending.kind if job.ending else None
    return {"isCancelled": kind == "cancelled", "isTerminated": kind == "terminated"}


def _lower_actions(strategy: Document) -> Document:
    rules = strategy.get("evaluateOnExit", [])
    return strategy | {"evaluateOnExit": [rule | {"action": rule["action"].lower()} for rule in rules]}


def _container(job: Job, container: Container | None) -> Document:
    """Of the last attempt, if there was one; before, what is planned."""
    described = plans.container_properties(job) | {"networkInterfaces": []}
    if container:
        described |= _outcome(container) | _place(job, container)
    return described


def _attempt(attempt: Attempt, container: Container) -> Document:
    return {
        "container": {
            "containerInstanceArn": container.host.instance_arn,
            "taskArn": container.task_arn,
            "networkInterfaces": [],
            **_given(logStreamName=container.stream and container.stream.name),
            **_outcome(container),
        },
        **_given(startedAt=container.started_at, stoppedAt=container.stopped_at, statusReason=container.status_reason),
        "taskProperties": [],
    }


def _place(job: Job, container: Container) -> Document:
    interface = {"attachmentId": container.task_arn.rsplit("/", 1)[-1], "privateIpv4Address": container.host.address}
    return {
        "containerInstanceArn": container.host.instance_arn,
        "taskArn": container.task_arn,
        "networkInterfaces": [interface] if job.definition.multinode else [],
        **_given(logStreamName=container.stream and container.stream.name),
    }


def _outcome(container: Container) -> Document:
    return _given(exitCode=container.exit_code, reason=container.reason)


def _node_properties(job: Job) -> Document:
    everywhere = {"targetNodes": "0:", "container": plans.container_properties(job)}
    return {"numNodes": job.nodes, "mainNode": job.main, "nodeRangeProperties": [everywhere]}


def _node_status(job: Job, node: int) -> str:
    if not job.attempts or not (job.attempt or job.over):
        return job.status
    container = job.attempts[-1].containers[node]
    if container.live:
        return "RUNNING"
    if container.over:
        return "SUCCEEDED" if container.exit_code == 0 else "FAILED"
    return "STARTING" if node == job.main or job.status == "RUNNING" else job.status


def _given(**members: object) -> Document:
    return {key: value for key, value in members.items() if value is not None}
