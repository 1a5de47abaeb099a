"""The environment of a container: the emulator's own, the job's, and what Batch says about the job."""

from __future__ import annotations

from tests.emulator.containers.processes import base_environment
from tests.emulator.engine.records import Attempt, Container, Job

COMPUTE_ENVIRONMENT = "emulator"


def container_environment(job: Job, attempt: Attempt, container: Container, url: str) -> dict[str, str]:
    environment = base_environment()
    environment |= {
        "AWS_BATCH_JOB_ID": job.container_id(container.node),
        "AWS_BATCH_JQ_NAME": job.queue.name,
        "AWS_BATCH_CE_NAME": COMPUTE_ENVIRONMENT,
        "AWS_BATCH_JOB_ATTEMPT": str(attempt.number),
        "AWS_ENDPOINT_URL_EC2": f"{url}/ec2/",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{url}/imds/{container.host.id}/",
    }
    if job.index is not None:
        environment["AWS_BATCH_JOB_ARRAY_INDEX"] = str(job.index)
        environment["AWS_BATCH_JOB_ARRAY_SIZE"] = str(len(job.parent.children) if job.parent else 0)
    if job.definition.multinode:
        environment["AWS_BATCH_JOB_NODE_INDEX"] = str(container.node)
        environment["AWS_BATCH_JOB_NUM_NODES"] = str(job.nodes)
        environment["AWS_BATCH_JOB_MAIN_NODE_INDEX"] = str(job.main)
        if container is not attempt.main:
            environment["AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"] = attempt.main.host.address
    return environment
