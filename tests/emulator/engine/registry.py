"""Queues, scheduling policies and job definitions: registered, found again, described, taken away."""

from __future__ import annotations

from tests.emulator.engine import plans, retries
from tests.emulator.engine.aws import Document, ServiceError, arn, page
from tests.emulator.engine.records import Definition, Queue

_LEAST_TIMEOUT_SECONDS = 60
_PAGE = 100


class Registry:
    def __init__(self) -> None:
        self._queues: dict[str, Queue] = {}
        self._definitions: dict[str, list[Definition]] = {}

    def create_scheduling_policy(self, request: Document) -> Document:
        return {"name": request["name"], "arn": arn("scheduling-policy", request["name"])}

    def create_job_queue(self, request: Document) -> Document:
        name = request["jobQueueName"]
        if name in self._queues:
            raise ServiceError(f"Object already exists: {name}")
        queue = self._queues[name] = Queue(name, request, request.get("state", "ENABLED"))
        return {"jobQueueName": name, "jobQueueArn": queue.arn}

    def update_job_queue(self, request: Document) -> Document:
        queue = self.queue(request["jobQueue"])
        queue.state = request.get("state", queue.state)
        if "schedulingPolicyArn" in request and not queue.policy:
            raise ServiceError("A job queue without a scheduling policy can't be given one.")
        queue.request |= {key: value for key, value in request.items() if key not in ("jobQueue", "state")}
        return {"jobQueueName": queue.name, "jobQueueArn": queue.arn}

    def delete_job_queue(self, request: Document) -> Document:
        queue = self.queue(request["jobQueue"])
        if queue.state != "DISABLED":
            raise ServiceError("Cannot delete, job queue must be DISABLED first.")
        del self._queues[queue.name]
        return {}

    def describe_job_queues(self, request: Document) -> Document:
        wanted = {_last_part(one) for one in request.get("jobQueues", [])}
        queues = [queue for queue in self._queues.values() if not wanted or queue.name in wanted]
        shown, more = page(queues, request, _PAGE)
        return {"jobQueues": [_describe_queue(queue) for queue in shown], **more}

    def register_job_definition(self, request: Document) -> Document:
        check_timeout(request)
        retries.check(request.get("retryStrategy", {}))
        plans.check_definition(request)
        name = request["jobDefinitionName"]
        revisions = self._definitions.setdefault(name, [])
        definition = Definition(name, len(revisions) + 1, request)
        revisions.append(definition)
        return {"jobDefinitionName": name, "jobDefinitionArn": definition.arn, "revision": definition.revision}

    def deregister_job_definition(self, request: Document) -> Document:
        self._find(request["jobDefinition"]).status = "INACTIVE"
        return {}

    def describe_job_definitions(self, request: Document) -> Document:
        every = [definition for revisions in self._definitions.values() for definition in reversed(revisions)]
        wanted = {_last_part(one) for one in request.get("jobDefinitions", [])}
        found = [
            one
            for one in every
            if (not wanted or one.name in wanted or f"{one.name}:{one.revision}" in wanted)
            and request.get("jobDefinitionName", one.name) == one.name
            and request.get("status", one.status) == one.status
        ]
        shown, more = page(found, request, _PAGE)
        return {"jobDefinitions": [_describe_definition(one) for one in shown], **more}

    def queue(self, name: str) -> Queue:
        """By name or ARN. Raises ServiceError: there is none."""
        queue = self._queues.get(_last_part(name))
        if queue is None:
            raise ServiceError(f"JobQueue {name} not found.")
        return queue

    def queue_for_submit(self, request: Document) -> Queue:
        """Raises ServiceError: it doesn't exist, takes no jobs, or wants a share identifier, or none."""
        queue = self.queue(request["jobQueue"])
        if queue.state != "ENABLED":
            raise ServiceError(f"Job queue {queue.arn} is not enabled.")
        if queue.policy and not request.get("shareIdentifier"):
            raise ServiceError("shareIdentifier must be specified for a job queue with a fair-share policy.")
        if not queue.policy and "shareIdentifier" in request:
            raise ServiceError("shareIdentifier can't be specified for a job queue without a scheduling policy.")
        return queue

    def definition(self, name: str) -> Definition:
        """By name (the newest active revision), name:revision or ARN. Raises ServiceError: none is active."""
        short = _last_part(name)
        if ":" in short:
            definition = self._find(short)
        else:
            active = [one for one in self._definitions.get(short, []) if one.status == "ACTIVE"]
            definition = active[-1] if active else None
        if definition is None or definition.status != "ACTIVE":
            raise ServiceError(f"JobDefinition {name} not found or not in ACTIVE state.")
        return definition

    def _find(self, name: str) -> Definition:
        for one in self._definitions.get(_last_part(name).split(":")[0], []):
            if f"{one.name}:{one.revision}" == _last_part(name):
                return one
        raise ServiceError(f"JobDefinition {name} not found.")


def check_timeout(request: Document) -> None:
    """Raises ServiceError: of a job definition or of a submission."""
    seconds = request.get("timeout", {}).get("attemptDurationSeconds")
    if seconds is not None and seconds < _LEAST_TIMEOUT_SECONDS:
        raise ServiceError(f"attemptDurationSeconds must be at least {_LEAST_TIMEOUT_SECONDS}.")


def _describe_queue(queue: Queue) -> Document:
    known = ("schedulingPolicyArn", "priority", "computeEnvironmentOrder", "jobStateTimeLimitActions", "tags")
    return {
        "jobQueueName": queue.name,
        "jobQueueArn": queue.arn,
        "state": queue.state,
        "status": "VALID",
        "statusReason": "JobQueue Healthy",
        "tags": {},
        "computeEnvironmentOrder": [],
        **{key: queue.request[key] for key in known if key in queue.request},
    }


def _describe_definition(definition: Definition) -> Document:
    request = definition.request
    described = {
        "jobDefinitionArn": definition.arn,
        "revision": definition.revision,
        "status": definition.status,
        "containerOrchestrationType": "ECS",
        "tags": {},
        **request,
    }
    if rules := request.get("retryStrategy", {}).get("evaluateOnExit"):
        lower = [rule | {"action": rule["action"].lower()} for rule in rules]
        described["retryStrategy"] = request["retryStrategy"] | {"evaluateOnExit": lower}
    return described


def _last_part(name: str) -> str:
    return name.rsplit("/", 1)[-1]
