"""What a node of a job runs: its definition's container with the submission's command."""

from __future__ import annotations

from tests.emulator.engine.aws import Document, ServiceError
from tests.emulator.engine.records import Definition, Job

_ALL_NODES = "0:"


def container_properties(job: Job) -> Document:
    """The same for each node."""
    return _defined(job.definition) | _overrides(job.request, job.definition)


def nodes(request: Document, definition: Definition) -> int:
    """How many nodes a submission to this definition has.

    Raises:
        ServiceError: its overrides don't fit the definition, or are of a kind that is not emulated.
    """
    _overrides(request, definition)  # so that it is refused before there is a job
    if not definition.multinode:
        if "nodeOverrides" in request:
            raise ServiceError("nodeOverrides can only be used with multi-node parallel job definitions.")
        return 1
    for key in ("containerOverrides", "arrayProperties"):
        if key in request:
            raise ServiceError(f"{key} can't be used with a multi-node parallel job.")
    overrides = request.get("nodeOverrides", {})
    count: int = overrides.get("numNodes", definition.request["nodeProperties"]["numNodes"])
    if count < 1:
        raise ServiceError(f"numNodes {count} leaves the main node out.")
    for one in overrides.get("nodePropertyOverrides", []):
        if one["targetNodes"] != _ALL_NODES:
            raise ServiceError(f"targetNodes {one['targetNodes']!r} is not emulated, only {_ALL_NODES!r}.")
    return count


def _defined(definition: Definition) -> Document:
    if definition.pod is not None:
        return _of_pod(definition.pod) | {"instanceType": definition.each_node.get("instanceTypes", [None])[0]}
    return definition.each_node["container" if definition.multinode else "containerProperties"]


def _of_pod(pod: Document) -> Document:
    """The container of a pod as one on ECS would be described."""
    (container,) = pod["containers"]
    limits = container["resources"]["limits"]
    return {
        "pod": pod,
        "image": container["image"],
        "command": [*container.get("command", []), *container.get("args", [])],
        "environment": container.get("env", []),
        "resourceRequirements": [
            {"type": "VCPU", "value": limits["cpu"]},
            {"type": "MEMORY", "value": limits["memory"].removesuffix("Mi")},
        ],
    }


def _overrides(request: Document, definition: Definition) -> Document:
    """Raises ServiceError: they change more than the command."""
    everywhere = request.get("nodeOverrides", {}).get("nodePropertyOverrides", [{}])[0]
    given: Document = everywhere if definition.multinode else request
    if definition.pod is None:
        if "eksPropertiesOverride" in given:
            raise ServiceError("eksPropertiesOverride can only be specified for jobs that run on Amazon EKS resources.")
        return _only_command(given.get("containerOverrides", {}))
    if "containerOverrides" in given:
        raise ServiceError("containerOverrides can't be used with an Amazon EKS job definition.")
    if "propagateTags" in request:
        raise ServiceError("propagateTags must not be specified for a job that runs on Amazon EKS resources.")
    pod = given.get("eksPropertiesOverride", {}).get("podProperties", {})
    (name,) = (one.get("name", "Default") for one in definition.pod["containers"])
    overrides: Document = {}
    for one in pod.get("containers", []):
        if one.get("name") != name:
            raise ServiceError(
                f"Container {one.get('name')!r} of the override is none of the job definition's: {name}."
            )
        overrides = _only_command({key: value for key, value in one.items() if key != "name"})
    return overrides


def _only_command(overrides: Document) -> Document:
    if overrides.keys() - {"command"}:
        raise ServiceError(f"Of overrides only command is emulated: {overrides}.")
    return overrides
