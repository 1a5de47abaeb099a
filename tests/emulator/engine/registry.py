"""Queues and job definitions: registered, found, described."""

from __future__ import annotations

from tests.emulator.engine.aws import Document, ServiceError, arn, page
from tests.emulator.engine.records import ComputeEnvironment, Definition, Queue

_PAGE = 100


class Registry:
    def __init__(self) -> None:
        self._environments: dict[str, ComputeEnvironment] = {}
        self._queues: dict[str, Queue] = {}
        self._definitions: dict[str, list[Definition]] = {}

    def create_compute_environment(self, request: Document) -> Document:
        name = request["computeEnvironmentName"]
        self._environments[name] = ComputeEnvironment(name, request)
        return {"computeEnvironmentName": name, "computeEnvironmentArn": arn("compute-environment", name)}

    def create_job_queue(self, request: Document) -> Document:
        """Raises ServiceError: there is no such compute environment."""
        name = request["jobQueueName"]
        order = sorted(request["computeEnvironmentOrder"], key=lambda one: one["order"])
        names = [_last_part(one["computeEnvironment"]) for one in order]
        if unknown := set(names) - set(self._environments):
            raise ServiceError(f"Compute environments {unknown} do not exist.")
        queue = self._queues[name] = Queue(name, request, [self._environments[name] for name in names])
        return {"jobQueueName": name, "jobQueueArn": queue.arn}

    def describe_job_queues(self, request: Document) -> Document:
        wanted = {_last_part(one) for one in request.get("jobQueues", self._queues)}
        return {"jobQueues": [_describe_queue(queue) for name, queue in self._queues.items() if name in wanted]}

    def register_job_definition(self, request: Document) -> Document:
        name = request["jobDefinitionName"]
        revisions = self._definitions.setdefault(name, [])
        definition = Definition(name, len(revisions) + 1, request)
        revisions.append(definition)
        return {"jobDefinitionName": name, "jobDefinitionArn": definition.arn, "revision": definition.revision}

    def describe_job_definitions(self, request: Document) -> Document:
        """All are ACTIVE."""
        known = [definition for revisions in self._definitions.values() for definition in reversed(revisions)]
        found = [one for one in known if request.get("jobDefinitionName", one.name) == one.name]
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
        """By name (the newest revision) or name:revision. Raises ServiceError: there is none."""
        short, _, revision = _last_part(name).partition(":")
        found = [one for one in self._definitions.get(short, []) if revision in ("", str(one.revision))]
        if not found:
            raise ServiceError(f"JobDefinition {name} not found or not in ACTIVE state.")
        return found[-1]


def _describe_queue(queue: Queue) -> Document:
    known = ("schedulingPolicyArn", "priority", "computeEnvironmentOrder")
    return {
        "jobQueueName": queue.name,
        "jobQueueArn": queue.arn,
        "state": queue.state,
        "status": "VALID",
        "statusReason": "JobQueue Healthy",
        **{key: queue.request[key] for key in known if key in queue.request},
    }


def _describe_definition(definition: Definition) -> Document:
    return {
        "jobDefinitionArn": definition.arn,
        "revision": definition.revision,
        "status": "ACTIVE",
        **definition.request,
    }


def _last_part(name: str) -> str:
    return name.rsplit("/", 1)[-1]
