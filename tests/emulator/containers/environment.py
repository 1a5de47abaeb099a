"""The environment of a container: of its image, its definition, the ECS agent and Batch. Nothing of the developer's.

Only what leads to the servers that play AWS comes from outside, the processor that libraries are told to take the
machine for, and what a test puts into the image.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path

from tests.emulator.containers.places import Folder
from tests.emulator.engine.records import Attempt, Container, Job

ROOT = Path(__file__).resolve().parents[3]
IMAGES = ROOT / "infra/images"
COMPUTE_ENVIRONMENT = "emulator"
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # Docker's own
_PROCESSOR = "OPENBLAS_CORETYPE"  # as Haswell; a container has its machine's, and so its rounding
_LEFT_OUT = ("PYTHONDONTWRITEBYTECODE",)  # spares an image's layers; here it would only cost time


def container_environment(
    job: Job, attempt: Attempt, container: Container, url: str, image: dict[str, str], folder: Folder
) -> dict[str, str]:
    """`image`: what a test adds to the image; `folder`: what is the container's own."""
    task = container.task_arn.rsplit("/", 1)[-1]
    environment = _of_image(container.properties["image"], image) | folder.environment
    if (servers := os.environ.get("AWS_ENDPOINT_URL")) is not None:
        environment["AWS_ENDPOINT_URL"] = servers
    if (processor := os.environ.get(_PROCESSOR)) is not None:
        environment[_PROCESSOR] = processor
    environment |= {
        "AWS_EXECUTION_ENV": "AWS_ECS_EC2",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{url}/credentials/{task}",
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"{url}/imds/{container.host.id}/",
        "AWS_ENDPOINT_URL_EC2": f"{url}/ec2/",
    }
    environment |= {one["name"]: one["value"] for one in container.properties.get("environment", ())}
    return environment | _of_batch(job, attempt, container)


def _of_image(name: str, added: dict[str, str]) -> dict[str, str]:
    """The image's variables; its Python and its code are those of the tests."""
    both = _written("worker-neuron" if "neuron" in name else "worker") | added
    paths = [one for one in (added.get("PYTHONPATH"), str(ROOT)) if one]
    python = str(Path(sys.executable).parent)
    programs = [one for one in (added.get("PATH"), python, _PATH) if one]
    return both | {"PATH": os.pathsep.join(programs), "PYTHONPATH": os.pathsep.join(paths)}


@functools.cache
def _written(image: str) -> dict[str, str]:
    lines = (IMAGES / f"{image}.Dockerfile").read_text().replace("\\\n", " ")
    words = [word for line in re.findall(r"^ENV (.*)$", lines, re.MULTILINE) for word in line.split()]
    pairs = dict(word.split("=", 1) for word in words)
    return {name: value for name, value in pairs.items() if name not in _LEFT_OUT}


def _of_batch(job: Job, attempt: Attempt, container: Container) -> dict[str, str]:
    environment = {
        "AWS_BATCH_JOB_ID": job.container_id(container.node),
        "AWS_BATCH_JQ_NAME": job.queue.name,
        "AWS_BATCH_CE_NAME": COMPUTE_ENVIRONMENT,
        "AWS_BATCH_JOB_ATTEMPT": str(attempt.number),
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
