"""Checks the queue and the job definition of a stage before a job is submitted."""

from configs.schema.compute import BatchConfig
from infra.compute.batch.client.api import Api, Definition, Queue
from infra.compute.batch.job import definition_of, queue_key, queue_of
from tasks.contracts.stages import TRAITS, Layout, Work
from tasks.foundation.errors import ConfigError


def checked(api: Api, stage: Work, batch: BatchConfig, definition: Definition | None) -> tuple[Queue, Definition]:
    """Return queue and job definition, if a job can be submitted with them. Raises ConfigError: names what is wrong."""
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
    multi_node = TRAITS[stage].layout is Layout.nodes
    if definition.multi_node != multi_node:
        kinds = ("multinode", "container") if multi_node else ("container", "multinode")
        raise ConfigError(
            f"AWS Batch job definition {wanted!r} in region {api.region} must be of type {kinds[0]} for stage "
            f"{stage}, and is of type {kinds[1]}; register it with infra/aws/millrace.yaml"
        )
    return queue, definition
