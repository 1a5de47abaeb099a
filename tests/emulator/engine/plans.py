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
    if definition.multinode:
        return definition.request["nodeProperties"]["nodeRangeProperties"][0]["container"]
    return definition.request["containerProperties"]


def _overrides(request: Document, definition: Definition) -> Document:
    """Raises ServiceError: they change more than the command."""
    everywhere = request.get("nodeOverrides", {}).get("nodePropertyOverrides", [{}])[0]
    overrides: Document = (everywhere if definition.multinode else request).get("containerOverrides", {})
    if overrides.keys() - {"command"}:
        raise ServiceError(f"Of containerOverrides only command is emulated: {overrides}.")
    return overrides
