"""What is submitted to AWS Batch for a stage: kind of job, name, tags, command, retries, share.

A pure function of the spec and the place. The name is the same whenever the same attempt is submitted: who has lost
the reply finds the job by it.
"""

from __future__ import annotations

import enum
import hashlib
import re
from typing import Any

from configs.schema import BatchConfig
from infra.batch.api import Definition, Queue
from infra.batch.retries import MOST_ATTEMPTS, evaluate_on_exit
from tasks.contracts import Chore, JobSpec, Stage

_NAME_CHARS = 128
_TAG_CHARS = 256
_ON_CPU = (Stage.validate, Stage.release)
TOGETHER = (Stage.health, Stage.warmup, Stage.train)  # as the nodes of one job
TAG = "millrace"  # the one that every job has; its value is the pipeline
WORKSPACE_TAG = f"{TAG}-workspace"


class Kind(enum.Enum):
    single = "single"
    array = "array"
    multi_node = "multi-node"


def kind_of(spec: JobSpec) -> Kind:
    """Workers that talk to each other are nodes of one job; those of inference are jobs of their own in an array."""
    if spec.stage in TOGETHER:
        return Kind.multi_node
    return Kind.array if spec.stage is Stage.infer and nodes_of(spec) > 1 else Kind.single


def nodes_of(spec: JobSpec) -> int:
    """Machines that a stage takes; one, where its workers don't fill it."""
    return max(1, spec.workers // spec.config.batch.processes_per_node)


def queue_key(stage: Stage | Chore) -> str:
    """Which key of the section `batch` names the queue of a stage."""
    return "cpu_queue" if stage in _ON_CPU else "accelerator_queue"


def queue_name(spec: JobSpec) -> str:
    return queue_of(spec.stage, spec.config.batch)


def queue_of(stage: Stage | Chore, batch: BatchConfig) -> str:
    name: str = getattr(batch, queue_key(stage))
    return name


def definition_name(spec: JobSpec) -> str:
    return definition_of(spec.stage, spec.config.batch)


def definition_of(stage: Stage | Chore, batch: BatchConfig) -> str:
    return batch.definition.replace("{stage}", stage.value)


def dollars_per_node_hour(spec: JobSpec) -> float:
    batch = spec.config.batch
    return batch.cpu_dollars_per_node_hour if spec.stage in _ON_CPU else batch.accelerator_dollars_per_node_hour


def job_name(spec: JobSpec) -> str:
    """Unique for the attempt that is submitted, and always the same for it."""
    digest = hashlib.sha256(spec.to_json()).hexdigest()[:8]
    rest = f"-{spec.stage.value}-{spec.run_key}-{digest}-a{spec.submitted_as}"
    pipeline = re.sub(r"[^A-Za-z0-9_-]", "-", spec.config.pipeline).lstrip("_-") or TAG
    return pipeline[: _NAME_CHARS - len(rest)] + rest


def tags_of(spec: JobSpec, workspace: str, flow_run: str) -> dict[str, str]:
    """By which people, bills and `millrace reap` know a job."""
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
    """A text as AWS takes it for a tag's value; one that had to be changed ends with a digest of what it was."""
    allowed = re.sub(r"[^A-Za-z0-9 _.:/=+@-]", "_", text)
    if allowed == text and len(text) <= _TAG_CHARS:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{allowed[: _TAG_CHARS - 9]}-{digest}"


def submission(
    spec: JobSpec, workspace: str, flow_run: str, tries: int, queue: Queue, definition: Definition
) -> dict[str, Any]:
    """The arguments of SubmitJob."""
    batch, kind = spec.config.batch, kind_of(spec)
    uri = f"{workspace}#{spec.job_prefix}/spec.json"
    container = {"command": ["python", "-m", "tasks.worker.launch", spec.stage.value, "--spec", uri]}
    request: dict[str, Any] = {
        "jobName": job_name(spec),
        "jobQueue": queue.name,
        "jobDefinition": f"{definition.name}:{definition.revision}",
        "retryStrategy": {"attempts": min(tries, MOST_ATTEMPTS), "evaluateOnExit": evaluate_on_exit()},
        "timeout": {"attemptDurationSeconds": batch.attempt_seconds},
        "tags": tags_of(spec, workspace, flow_run),
        "propagateTags": True,
    }
    if queue.fair_share:
        request |= {"shareIdentifier": batch.share, "schedulingPriorityOverride": batch.priority}
    if kind is Kind.multi_node:
        everywhere = {"targetNodes": "0:", "containerOverrides": container}
        return request | {"nodeOverrides": {"numNodes": nodes_of(spec), "nodePropertyOverrides": [everywhere]}}
    if kind is Kind.array:
        request["arrayProperties"] = {"size": nodes_of(spec)}
    return request | {"containerOverrides": container}
