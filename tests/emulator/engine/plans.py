"""What a node of a job runs: its definition's container with the submission's overrides laid over it."""

from __future__ import annotations

import math
from typing import Any

from tests.emulator.engine.aws import Document, ServiceError
from tests.emulator.engine.records import Definition, Job

_ALL_NODES = "0:"


def container_properties(job: Job) -> Document:
    """Command, environment, resourceRequirements and all else; the same for each node."""
    overrides = _overrides(job.request, job.definition)
    properties = dict(_defined(job.definition))
    properties["command"] = overrides.get("command", properties["command"])
    for key, name in (("environment", "name"), ("resourceRequirements", "type")):
        properties[key] = _merge(properties.get(key, []), overrides.get(key, []), name)
    return properties


def cores(properties: Document) -> int:
    """The VCPU requirement, rounded up to whole cores."""
    wanted = {one["type"]: one["value"] for one in properties["resourceRequirements"]}
    return math.ceil(float(wanted["VCPU"]))


def nodes(request: Document, definition: Definition) -> int:
    """How many nodes a submission to this definition has.

    Raises:
        ServiceError: its overrides don't fit the definition, or are of a kind that is not emulated.
    """
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
    if definition.multinode:
        return definition.request["nodeProperties"]["nodeRangeProperties"][0]["container"]
    return definition.request["containerProperties"]


def _overrides(request: Document, definition: Definition) -> Document:
    if not definition.multinode:
        return request.get("containerOverrides", {})
    everywhere = request.get("nodeOverrides", {}).get("nodePropertyOverrides", [])
    return everywhere[0].get("containerOverrides", {}) if everywhere else {}


def _merge(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return list({one[key]: one for one in [*ours, *theirs]}.values())
