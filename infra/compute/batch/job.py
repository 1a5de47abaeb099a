"""The AWS Batch job of a stage: its kind, name, tags, command, retries and share.

The request is a pure function of the spec and the configuration. An attempt's job always has the same name, by which
it is found after a lost reply.
"""

import hashlib
import re
import time
from collections.abc import Callable, Mapping
from typing import Any

from configs.schema.compute import BatchConfig
from infra.compute.batch.api import Api, Backoff, Definition, MaybeAccepted, NotAccepted, Queue
from infra.compute.batch.claim import owner_of
from infra.compute.batch.job_detail import JobDetail
from infra.store.base import Store
from tasks.contracts.jobs import JobSpec, address
from tasks.contracts.stages import WORKS, Layout, Stage, Work
from tasks.contracts.stages import Queue as Kind
from tasks.foundation.errors import POLICIES, ConfigError, FailureClass

VISIBILITY_SECONDS = 30.0  # an accepted job appears in listings within this time
_LOOK_EVERY_SECONDS = 1.0
TWIN = "a second job of the same name; the other one keeps running"


def submit(api: Api, request: Mapping[str, Any], keep: Callable[[list[JobDetail]], str]) -> str:
    """Submit, despite lost replies and throttling; return the job's id.

    Args:
        keep: chooses the job to keep from the jobs that a look-up found, and returns its id.

    Raises:
        ConfigError: AWS Batch refuses the job.
        HostError: the outcome is still unknown at the time limit; a job may exist.
    """
    backoff = Backoff(api.policy, f"AWS Batch in {api.region}")
    while True:
        try:
            return api.submit(request)
        except NotAccepted as error:
            backoff.wait_after(error)
        except MaybeAccepted as error:
            api.policy.say("no answer to SubmitJob; looking whether the job is there")
            if found := find_jobs(api, request["jobQueue"], request["jobName"]):
                return keep(found)
            backoff.wait_after(error)


def find_jobs(api: Api, queue: str, name: str, at_most: float = float("inf")) -> list[JobDetail]:
    """Wait for a job of this name and return all jobs with that name.

    Empty after `VISIBILITY_SECONDS`, or after `at_most` seconds.
    """
    until = time.monotonic() + min(VISIBILITY_SECONDS, at_most)
    while True:
        found = api.named(queue, name)
        if found or time.monotonic() >= until:
            return found
        api.policy.sleep(_LOOK_EVERY_SECONDS)


def keep_one_job(api: Api, store: Store, prefix: str, found: list[JobDetail]) -> str:
    """End all jobs but one and return its id: the attempt's owner, else the oldest that is not over."""
    owner = owner_of(store, prefix)
    first = next((job for job in found if not job.over), found[0])
    kept = next((job for job in found if job.id == owner), first)
    for job in found:
        if job.id != kept.id and not job.over:
            api.terminate(job.id, TWIN)
    return kept.id


def check_queue(api: Api, stage: Work, batch: BatchConfig, definition: Definition | None) -> tuple[Queue, Definition]:
    """Return queue and job definition if they can take a job. Raises ConfigError: names the fault."""
    name, key = queue_of(stage, batch), f"batch.{queue_key(stage, batch)}"
    queue = api.queue(name)
    if queue is None:
        raise ConfigError(
            f"there is no AWS Batch job queue {name!r} in region {api.region}; create it with infra/aws/millrace.yaml, "
            f"or correct {key} or AWS_DEFAULT_REGION"
        )
    if not queue.enabled:
        raise ConfigError(
            f"AWS Batch job queue {name!r} in region {api.region} is disabled; enable it, or name another as {key}"
        )
    if queue.status == "INVALID":
        raise ConfigError(
            f"AWS Batch job queue {name!r} in region {api.region} is invalid ({queue.status_reason}); repair it, or "
            f"name another as {key}"
        )
    wanted = definition_of(stage, batch)
    if definition is None:
        raise ConfigError(
            f"there is no active AWS Batch job definition {wanted!r} in region {api.region}; register it with "
            "infra/aws/millrace.yaml, or correct batch.definition or AWS_DEFAULT_REGION"
        )
    multi_node = stage.traits.layout is Layout.nodes
    if definition.multi_node != multi_node:
        kinds = ("multinode", "container") if multi_node else ("container", "multinode")
        raise ConfigError(
            f"AWS Batch job definition {wanted!r} in region {api.region} must be of type {kinds[0]} for stage "
            f"{stage}, and is of type {kinds[1]}; register it with infra/aws/millrace.yaml"
        )
    return queue, definition


HOST_LOST = "Host EC2"
MOST_ATTEMPTS = 10  # AWS Batch takes no more


def evaluate_on_exit() -> list[dict[str, str]]:
    """Return the rules in order. AWS Batch retries an attempt without a matching rule, so the last one matches all."""
    return [
        {"onStatusReason": f"{HOST_LOST}*", "action": "RETRY"},
        *({"onExitCode": str(code), "action": "RETRY"} for code in _transient_codes()),
        {"onReason": "*", "action": "EXIT"},
    ]


def is_repeated(status_reason: str, exit_code: int | None) -> bool:
    """Return True if the rules let AWS Batch retry an attempt that ended like this."""
    return status_reason.startswith(HOST_LOST) or exit_code in _transient_codes()


def _transient_codes() -> list[int]:
    """Return the exit codes of the transient classes except CAPACITY: a running container has its machine."""
    return [
        policy.exit_code
        for failure, policy in POLICIES.items()
        if policy.transient and failure is not FailureClass.CAPACITY
    ]


_NAME_CHARS = 128
_TAG_CHARS = 256
TAG = "millrace"  # every job has it; its value is the pipeline
WORKSPACE_TAG = f"{TAG}-workspace"


def layout_of(spec: JobSpec) -> Layout:
    """Return the layout of a stage's job; an array of one machine is submitted as a single job."""
    layout = spec.stage.traits.layout
    return Layout.single if layout is Layout.array and nodes_of(spec) == 1 else layout


def nodes_of(spec: JobSpec) -> int:
    """Return the number of machines of a stage; 1 if its workers do not fill one."""
    return spec.config.batch.nodes_of(spec.stage.value, spec.workers)


def queue_key(stage: Work, batch: BatchConfig) -> str:
    """Return the key of the section `batch` that names a stage's queue."""
    return "infer.queue" if stage is Stage.infer and batch.infer else f"{stage.traits.queue}_queue"


def queue_of(stage: Work, batch: BatchConfig) -> str:
    if stage is Stage.infer and batch.infer is not None:
        return batch.infer.queue
    return batch.cpu_queue if stage.traits.queue is Kind.cpu else batch.accelerator_queue


def queues_of(batch: BatchConfig) -> tuple[str, ...]:
    """Return all queues, each once, including the GPU queue of `millrace parity`."""
    others = (batch.cuda.queue,) if batch.cuda is not None else ()
    return tuple(dict.fromkeys((*(queue_of(stage, batch) for stage in WORKS), *others)))


def definition_of(stage: Work, batch: BatchConfig) -> str:
    if stage is Stage.infer and batch.infer is not None:
        name = batch.infer.definition
    elif stage.traits.queue is Kind.accelerator and batch.accelerator_definition is not None:
        name = batch.accelerator_definition
    else:
        name = batch.definition
    return name.replace("{stage}", stage.value)


def job_name(spec: JobSpec) -> str:
    """Return the job's name, which is unique to the attempt and always the same for it."""
    digest = spec.sha256[:8]
    rest = f"-{spec.stage.value}-{spec.run_key}-{digest}-a{spec.submitted_as}"
    pipeline = re.sub(r"[^A-Za-z0-9_-]", "-", spec.config.pipeline).lstrip("_-") or TAG
    return pipeline[: _NAME_CHARS - len(rest)] + rest


def tags_of(spec: JobSpec, workspace: str, flow_run: str) -> dict[str, str]:
    """Return the tags that identify a job for people, bills and `millrace reap`."""
    tags = {
        TAG: spec.config.pipeline,
        f"{TAG}-run": spec.run_key,
        f"{TAG}-stage": spec.stage.value,
        f"{TAG}-attempt": str(spec.submitted_as),
        WORKSPACE_TAG: workspace,
        f"{TAG}-lineage": spec.config.lineage,
        f"{TAG}-flow-run": flow_run,
    }
    return {key: tag_value(value) for key, value in tags.items() if value}


def tag_value(text: str) -> str:
    """Return the text as AWS accepts it in a tag; a changed text ends with a digest of the original."""
    allowed = re.sub(r"[^A-Za-z0-9 _.:/=+@-]", "_", text)
    if allowed == text and len(text) <= _TAG_CHARS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{allowed[: _TAG_CHARS - 9]}-{digest}"


def submission(
    spec: JobSpec, workspace: str, flow_run: str, tries: int, queue: Queue, definition: Definition
) -> dict[str, Any]:
    """Return the arguments of SubmitJob."""
    batch, layout = spec.config.batch, layout_of(spec)
    uri = address(workspace, f"{spec.job_prefix}/spec.json#{spec.sha256}")
    overrides = _with_command(definition, ["python", "-m", "tasks.worker.launch", spec.stage.value, "--spec", uri])
    request: dict[str, Any] = {
        "jobName": job_name(spec),
        "jobQueue": queue.name,
        "jobDefinition": f"{definition.name}:{definition.revision}",
        "retryStrategy": {"attempts": min(tries, MOST_ATTEMPTS), "evaluateOnExit": evaluate_on_exit()},
        "timeout": {"attemptDurationSeconds": batch.attempt_seconds},
        "tags": tags_of(spec, workspace, flow_run),
    }
    if definition.pod_container is None:
        request["propagateTags"] = True  # ECS tasks get the tags; pods can't
    if queue.fair_share:
        request |= {"shareIdentifier": batch.share, "schedulingPriorityOverride": batch.priority}
    if layout is Layout.nodes:
        everywhere = {"targetNodes": "0:", **overrides}
        return request | {"nodeOverrides": {"numNodes": nodes_of(spec), "nodePropertyOverrides": [everywhere]}}
    if layout is Layout.array:
        request["arrayProperties"] = {"size": nodes_of(spec)}
    return request | overrides


def _with_command(definition: Definition, command: list[str]) -> dict[str, Any]:
    if definition.pod_container is None:
        return {"containerOverrides": {"command": command}}
    container = {"name": definition.pod_container, "command": command}
    return {"eksPropertiesOverride": {"podProperties": {"containers": [container]}}}
