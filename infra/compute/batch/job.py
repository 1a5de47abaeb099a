"""What is submitted to AWS Batch for a stage: kind of job, name, tags, command, retries, share.

A pure function of the spec and the configuration. The same attempt always has the same name: a job whose reply was
lost is found by it.
"""

import hashlib
import re
from typing import Any

from configs.schema.compute import BatchConfig
from infra.compute.batch.client.api import Definition, Queue
from infra.compute.batch.retries import MOST_ATTEMPTS, evaluate_on_exit
from tasks.contracts.jobs import JobSpec
from tasks.contracts.stages import TRAITS, Layout, Stage, Work
from tasks.contracts.stages import Queue as Kind

_NAME_CHARS = 128
_TAG_CHARS = 256
TAG = "millrace"  # every job has it; its value is the pipeline
WORKSPACE_TAG = f"{TAG}-workspace"


def layout_of(spec: JobSpec) -> Layout:
    """Return the layout of a stage's job; an array of one machine is submitted as a single job."""
    layout = TRAITS[spec.stage].layout
    return Layout.single if layout is Layout.array and nodes_of(spec) == 1 else layout


def nodes_of(spec: JobSpec) -> int:
    """Return the number of machines that a stage takes; 1 where its workers do not fill one."""
    return max(1, spec.workers // spec.config.batch.processes_of(spec.stage.value))


def queue_key(stage: Work, batch: BatchConfig) -> str:
    """Return the key of the section `batch` that names a stage's queue."""
    return "infer.queue" if stage is Stage.infer and batch.infer else f"{TRAITS[stage].queue}_queue"


def queue_of(stage: Work, batch: BatchConfig) -> str:
    if stage is Stage.infer and batch.infer is not None:
        return batch.infer.queue
    return batch.cpu_queue if TRAITS[stage].queue is Kind.cpu else batch.accelerator_queue


def queues_of(batch: BatchConfig) -> tuple[str, ...]:
    """Return all queues, each once; that of the machines with GPUs too, where `millrace parity` trains."""
    others = (batch.cuda.queue,) if batch.cuda is not None else ()
    return tuple(dict.fromkeys((*(queue_of(stage, batch) for stage in TRAITS), *others)))


def definition_of(stage: Work, batch: BatchConfig) -> str:
    if stage is Stage.infer and batch.infer is not None:
        name = batch.infer.definition
    elif TRAITS[stage].queue is Kind.accelerator and batch.accelerator_definition is not None:
        name = batch.accelerator_definition
    else:
        name = batch.definition
    return name.replace("{stage}", stage.value)


def dollars_per_node_hour(spec: JobSpec) -> float:
    if spec.stage is Stage.infer and spec.config.batch.infer is not None:
        return spec.config.batch.infer.dollars_per_node_hour
    dollars: float = getattr(spec.config.batch, f"{TRAITS[spec.stage].queue}_dollars_per_node_hour")
    return dollars


def job_name(spec: JobSpec) -> str:
    """Return the job's name: unique to the attempt, and always the same for it."""
    digest = spec.sha256[:8]
    rest = f"-{spec.stage.value}-{spec.run_key}-{digest}-a{spec.submitted_as}"
    pipeline = re.sub(r"[^A-Za-z0-9_-]", "-", spec.config.pipeline).lstrip("_-") or TAG
    return pipeline[: _NAME_CHARS - len(rest)] + rest


def tags_of(spec: JobSpec, workspace: str, flow_run: str) -> dict[str, str]:
    """Return the tags by which people, bills and `millrace reap` know a job."""
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
    """Return a text that AWS accepts as a tag's value; a changed one ends with a digest of the original."""
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
    uri = f"{workspace}#{spec.job_prefix}/spec.json#{spec.sha256}"
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
    if layout is Layout.nodes:
        everywhere = {"targetNodes": "0:", "containerOverrides": container}
        return request | {"nodeOverrides": {"numNodes": nodes_of(spec), "nodePropertyOverrides": [everywhere]}}
    if layout is Layout.array:
        request["arrayProperties"] = {"size": nodes_of(spec)}
    return request | {"containerOverrides": container}
