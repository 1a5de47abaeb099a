"""What a node of a job runs: its definition's container with the submission's overrides laid over it."""

from __future__ import annotations

import math
import re
from typing import Any

from tests.emulator.engine.aws import Document, ServiceError
from tests.emulator.engine.records import Definition, Job

_PARAMETER = re.compile(r"Ref::([A-Za-z0-9_-]+)")
_RANGE = re.compile(r"(\d*)(:?)(\d*)")
_RESERVED = "AWS_BATCH"


def container_properties(job: Job, node: int) -> Document:
    """Command, environment, resourceRequirements and all else of one node, parameters filled in."""
    overrides = _overrides(job.request, job.definition, node)
    properties = dict(_defined(job.definition, node, job.nodes))
    if "command" in overrides:
        properties["command"] = overrides["command"]
    for key, name in (("environment", "name"), ("resourceRequirements", "type")):
        properties[key] = _merge(properties.get(key, []), overrides.get(key, []), name)
    parameters = {**job.definition.request.get("parameters", {}), **job.request.get("parameters", {})}
    properties["command"] = [
        _PARAMETER.sub(lambda found: parameters.get(found[1], found[0]), word) for word in properties.get("command", [])
    ]
    return properties


def cores(properties: Document) -> int:
    """The VCPU requirement, rounded up to whole cores."""
    wanted = {one["type"]: one["value"] for one in properties["resourceRequirements"]}
    return math.ceil(float(wanted.get("VCPU", properties.get("vcpus", 1))))


def first_node(targets: str) -> int:
    return _bounds(targets, 1)[0]


def nodes(request: Document, definition: Definition) -> int:
    """How many nodes a submission to this definition has.

    Raises:
        ServiceError: its overrides don't fit the definition.
    """
    if not definition.multinode:
        if "nodeOverrides" in request:
            raise ServiceError("nodeOverrides can only be used with multi-node parallel job definitions.")
        _check_environment(request.get("containerOverrides", {}))
        return 1
    for key in ("containerOverrides", "arrayProperties"):
        if key in request:
            raise ServiceError(f"{key} can't be used with a multi-node parallel job.")
    defined = definition.request["nodeProperties"]
    overrides = request.get("nodeOverrides", {})
    count: int = overrides.get("numNodes", defined["numNodes"])
    ranges = [one["targetNodes"] for one in defined["nodeRangeProperties"]]
    if "numNodes" in overrides and not any(text.endswith(":") for text in ranges):
        raise ServiceError("numNodes can only be overridden where a node range has an open upper boundary.")
    if not defined["mainNode"] < count or any(_bounds(text, count)[0] >= count for text in ranges):
        raise ServiceError(f"numNodes {count} leaves a node range or the main node out.")
    for one in overrides.get("nodePropertyOverrides", []):
        first, last = _bounds(one["targetNodes"], count)
        if not first <= last < count:
            raise ServiceError(f"targetNodes {one['targetNodes']!r} is outside of {count} nodes.")
        _check_environment(one.get("containerOverrides", {}))
    return count


def check_definition(request: Document) -> None:
    """Raises ServiceError: no job could run from this RegisterJobDefinition."""
    if request["type"] == "multinode":
        properties = request.get("nodeProperties")
        if not properties:
            raise ServiceError("nodeProperties must be specified for a multinode job definition.")
        ranges = properties["nodeRangeProperties"]
        count = properties["numNodes"]
        covered = {node for one in ranges for node in _covered(one["targetNodes"], count)}
        if covered != set(range(count)):
            raise ServiceError("The node ranges must account for all nodes (0:n).")
        containers = [one["container"] for one in ranges]
    else:
        if "containerProperties" not in request:
            raise ServiceError("containerProperties must be specified for a container job definition.")
        containers = [request["containerProperties"]]
    for container in containers:
        types = {one["type"] for one in container.get("resourceRequirements", [])}
        if not container.get("image"):
            raise ServiceError("Container image must be specified.")
        if not ("VCPU" in types or "vcpus" in container) or not ("MEMORY" in types or "memory" in container):
            raise ServiceError("resourceRequirements must have VCPU and MEMORY.")


def _defined(definition: Definition, node: int, count: int) -> Document:
    if not definition.multinode:
        properties: Document = definition.request["containerProperties"]
        return properties
    return _narrowest(definition.request["nodeProperties"]["nodeRangeProperties"], node, count).get("container", {})


def _overrides(request: Document, definition: Definition, node: int) -> Document:
    if not definition.multinode:
        return request.get("containerOverrides", {})
    overrides = request.get("nodeOverrides", {})
    count = overrides.get("numNodes", definition.request["nodeProperties"]["numNodes"])
    return _narrowest(overrides.get("nodePropertyOverrides", []), node, count).get("containerOverrides", {})


def _narrowest(ranges: list[Document], node: int, count: int) -> Document:
    """Ranges may be nested: the inner one counts."""
    fitting = [one for one in ranges if node in _covered(one["targetNodes"], count)]
    return min(fitting, key=lambda one: len(_covered(one["targetNodes"], count)), default={})


def _covered(text: str, count: int) -> range:
    first, last = _bounds(text, count)
    return range(first, last + 1)


def _bounds(text: str, count: int) -> tuple[int, int]:
    """The first and last node of `3`, `1:3`, `:3`, `1:` or `:`."""
    found = _RANGE.fullmatch(text)
    if not found or not text:
        raise ServiceError(f"targetNodes {text!r} is not a range of nodes.")
    first, colon, last = found.groups()
    if not colon:
        return int(first), int(first)
    return int(first or 0), int(last) if last else max(count - 1, int(first or 0))


def _merge(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return list({one[key]: one for one in [*ours, *theirs]}.values())


def _check_environment(overrides: Document) -> None:
    for one in overrides.get("environment", []):
        if one["name"].startswith(_RESERVED):
            raise ServiceError(f"Environment variable {one['name']} must not start with {_RESERVED}.")
