"""The operations on jobs: submit, describe, list, terminate. Each takes and gives JSON as AWS does."""

from __future__ import annotations

import math
import re
import time
import uuid

from tests.emulator.engine import plans, retries, shapes
from tests.emulator.engine.aws import Document, ServiceError, page
from tests.emulator.engine.faults import Faults
from tests.emulator.engine.records import STATES, Ending, Job
from tests.emulator.engine.registry import Registry
from tests.emulator.engine.state_machine import Engine

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_SHARE = re.compile(r"[A-Za-z0-9_]{1,255}\*?")
_ARRAY = range(2, 10_001)
_MOST_DESCRIBED = 100
_MOST_LISTED = 100
_MOST_TAGS = 50
_LEAST_TIMEOUT_SECONDS = 60


class Jobs:
    def __init__(self, engine: Engine, registry: Registry, faults: Faults) -> None:
        self._engine, self._registry, self._faults = engine, registry, faults

    def submit_job(self, request: Document) -> Document:
        job = self._new_job(request)
        job.visible_at = time.monotonic() + self._faults.hidden_seconds(job)
        self._engine.add(job)
        return {"jobName": job.name, "jobId": job.id, "jobArn": shapes.job_arn(job)}

    def describe_jobs(self, request: Document) -> Document:
        if len(request["jobs"]) > _MOST_DESCRIBED:
            raise ServiceError(f"A request can describe at most {_MOST_DESCRIBED} jobs.")
        described = []
        for name in request["jobs"]:
            base, _, node = name.rsplit("/", 1)[-1].partition("#")
            job = self._visible(base)
            if job and not node:
                described.append(shapes.describe(job))
            elif job and job.definition.multinode and node.isdecimal() and int(node) < job.nodes:
                described.append(shapes.describe_node(job, int(node)))
        return {"jobs": described}

    def list_jobs(self, request: Document) -> Document:
        """A queue's jobs, the newest first, with one of some names or in a status; arrays and nodes as one job each."""
        queue = self._registry.queue(request["jobQueue"])
        status = request.get("jobStatus", "RUNNING")
        if status not in STATES:
            raise ServiceError(f"jobStatus {status} is not one of {', '.join(STATES)}.")
        jobs = [job for job in reversed(self._engine.jobs.values()) if job.queue is queue and not job.parent]
        if filters := request.get("filters"):
            jobs = [job for job in jobs if all(_passes(job, one) for one in filters)]
        else:
            jobs = [job for job in jobs if job.status == status]
        summaries = [shapes.summarize(job) for job in jobs if self._visible(job.id)]
        shown, more = page(summaries, request, _MOST_LISTED)
        return {"jobSummaryList": shown, **more}

    def terminate_job(self, request: Document) -> Document:
        self._engine.end(self._known(request["jobId"]), Ending("terminated", request["reason"]))
        return {}

    def _new_job(self, request: Document) -> Job:
        """Raises ServiceError: Batch would refuse this submission."""
        if not _NAME.fullmatch(request["jobName"]):
            raise ServiceError("Job name should match valid pattern ^[A-Za-z0-9][A-Za-z0-9_-]{0,127}$.")
        queue = self._registry.queue_for_submit(request)
        if "shareIdentifier" in request and not _SHARE.fullmatch(request["shareIdentifier"]):
            raise ServiceError("shareIdentifier must be letters, digits and underscores.")
        if not 0 <= request.get("schedulingPriorityOverride", 0) <= 9999:
            raise ServiceError("schedulingPriorityOverride must be between 0 and 9999.")
        definition = self._registry.definition(request["jobDefinition"])
        retries.check(request.get("retryStrategy", {}))
        if request.get("timeout", {}).get("attemptDurationSeconds", math.inf) < _LEAST_TIMEOUT_SECONDS:
            raise ServiceError(f"attemptDurationSeconds must be at least {_LEAST_TIMEOUT_SECONDS}.")
        propagated = definition.request.get("tags", {}) if request.get("propagateTags") else {}
        tags = {**propagated, **request.get("tags", {})}
        if len(tags) > _MOST_TAGS:
            raise ServiceError(f"A job can have at most {_MOST_TAGS} tags.")
        nodes = plans.nodes(request, definition)
        main = definition.request["nodeProperties"]["mainNode"] if definition.multinode else 0
        job = Job(str(uuid.uuid4()), request["jobName"], queue, definition, request, tags, nodes, main)
        size = request.get("arrayProperties", {}).get("size")
        if size is not None and size not in _ARRAY:
            raise ServiceError(f"Array size must be between {_ARRAY[0]} and {_ARRAY[-1]}.")
        job.children = [
            Job(f"{job.id}:{index}", job.name, queue, definition, request, tags, index=index, parent=job)
            for index in range(size or 0)
        ]
        return job

    def _known(self, name: str) -> Job:
        job = self._engine.jobs.get(name.rsplit("/", 1)[-1])
        if job is None:
            raise ServiceError(f"Job {name} not found.")
        return job

    def _visible(self, name: str) -> Job | None:
        job = self._engine.jobs.get(name)
        if job is None or time.monotonic() < (job.parent or job).visible_at:
            return None
        return job


def _passes(job: Job, wanted: Document) -> bool:
    """Whether a job has one of the names of a ListJobs filter, in large or small letters."""
    if wanted["name"] != "JOB_NAME":
        raise ServiceError(f"The filter {wanted['name']} is not emulated.")
    return job.name.lower() in [value.lower() for value in wanted["values"]]
