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
        **_attempts(job, [(one, one.main) for one in job.attempts if one.over]),
        **_given(statusReason=job.status_reason, startedAt=job.started_at, stoppedAt=job.stopped_at),
    }
    if job.definition.multinode:
        described["nodeProperties"] = _node_properties(job)
    else:
        attempt = job.attempts[-1] if job.attempts else None
        described |= _running(job, attempt and attempt.main)
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
    attempts = [(one, one.containers[node]) for one in job.attempts if one.containers[node].over]
    return _common(job) | {
        "jobId": job.container_id(node),
        "jobArn": arn("job", job.container_id(node)),
        "status": _node_status(job, node),
        **_attempts(job, attempts),
        **_running(job, container),
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
        summary["container"] = _outcome(job.attempts[-1].main)  # of pods too
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
        **({"platformCapabilities": ["EC2"]} if job.definition.pod is None else {}),
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


def _running(job: Job, container: Container | None) -> Document:
    if job.definition.pod is None:
        return {"container": _container(job, container)}
    return {"eksProperties": {"podProperties": _pod(job, container)}}


def _attempts(job: Job, ended: list[tuple[Attempt, Container]]) -> Document:
    if job.definition.pod is None:
        return {"attempts": [_attempt(attempt, container) for attempt, container in ended]}
    return {"eksAttempts": [_ended_pod(job, container) for _, container in ended]}


def _pod(job: Job, container: Container | None) -> Document:
    assert job.definition.pod is not None
    (defined,) = job.definition.pod["containers"]
    described = {"name": "Default", **defined, "command": plans.container_properties(job)["command"]}
    if container is None:
        return {**job.definition.pod, "containers": [described]}
    return {**job.definition.pod, "containers": [described | _pod_outcome(container)], **_pod_place(container)}


def _ended_pod(job: Job, container: Container) -> Document:
    assert job.definition.pod is not None
    (defined,) = job.definition.pod["containers"]
    return {
        "containers": [{"name": defined.get("name", "Default"), **_pod_outcome(container)}],
        **_pod_place(container),
        **_given(startedAt=container.started_at, stoppedAt=container.stopped_at),
    }


def _pod_place(container: Container) -> Document:
    return {"podName": f"aws-batch.{container.task_arn.rsplit('/', 1)[-1]}", "nodeName": container.host.id}


# As Kubernetes says it.
_POD_REASONS = {"OutOfMemoryError": "OOMKilled", "CannotPullContainerError": "ErrImagePull"}


def _pod_outcome(container: Container) -> Document:
    said = (container.reason or "").partition(":")[0]
    code = container.exit_code
    ended = None if code is None else "Error" if code else "Completed"
    return _given(
        exitCode=code, reason=_POD_REASONS.get(said) or (f"StartError: {container.reason}" if said else ended)
    )


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
    everywhere = {"targetNodes": "0:", **_planned(job)}
    return {"numNodes": job.nodes, "mainNode": job.main, "nodeRangeProperties": [everywhere]}


def _planned(job: Job) -> Document:
    if job.definition.pod is None:
        return {"container": plans.container_properties(job)}
    return {"eksProperties": {"podProperties": job.definition.pod}}


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
