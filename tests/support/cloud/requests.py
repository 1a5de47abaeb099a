"""The calls that CloudFormation makes for the template's resources, checked by botocore's models of the services."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
from botocore.validate import ParamValidator

from tests.support.cloud.template import TEMPLATE, made

# How CloudFormation makes a resource: service, call, and what it adds by itself.
CALLS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "AWS::AutoScaling::AutoScalingGroup": (
        "autoscaling",
        "CreateAutoScalingGroup",
        {"AutoScalingGroupName": "made-up"},
    ),
    "AWS::Batch::ComputeEnvironment": ("batch", "CreateComputeEnvironment", {"computeEnvironmentName": "made-up"}),
    "AWS::Batch::JobDefinition": ("batch", "RegisterJobDefinition", {}),
    "AWS::Batch::JobQueue": ("batch", "CreateJobQueue", {}),
    "AWS::Batch::SchedulingPolicy": ("batch", "CreateSchedulingPolicy", {}),
    "AWS::Budgets::Budget": ("budgets", "CreateBudget", {"AccountId": "123456789012"}),
    "AWS::EC2::LaunchTemplate": ("ec2", "CreateLaunchTemplate", {"LaunchTemplateName": "made-up"}),
    "AWS::EC2::PlacementGroup": ("ec2", "CreatePlacementGroup", {"GroupName": "made-up"}),
}
# Properties that are CloudFormation's own: how it updates what it has made.
_ITS_OWN = {"ReplaceComputeEnvironment", "UpdatePolicy"}


@cache
def operation(service: str, call: str) -> Any:
    return botocore.session.get_session().get_service_model(service).operation_model(call)


def requests(kind: str, of: Path = TEMPLATE, /, **parameters: str) -> dict[str, dict[str, Any]]:
    """The call's parameters for each resource of a kind in a stack with these parameters, by the resource's name."""
    service, call, added = CALLS[kind]
    shape = operation(service, call).input_shape
    return {
        name: added | as_parameters({key: value for key, value in one.items() if key not in _ITS_OWN}, shape)
        for name, one in made(kind, of, **parameters).items()
    }


def problems(kind: str, request: Mapping[str, Any]) -> list[str]:
    """What botocore and the service's own lists of values have against a call."""
    service, call, _ = CALLS[kind]
    shape = operation(service, call).input_shape
    report = ParamValidator().validate(request, shape)
    return [report.generate_report()] * report.has_errors() + not_listed(request, shape)


def definitions(of: Path = TEMPLATE, /, **parameters: str) -> dict[str, dict[str, Any]]:
    """The calls that register the job definitions, by name."""
    found = requests("AWS::Batch::JobDefinition", of, **parameters).values()
    return {one["jobDefinitionName"]: one for one in found}


def container(stage: str, prefix: str = "millrace", **parameters: str) -> dict[str, Any]:
    """The container of a stage's job definition."""
    definition = definitions(**parameters)[f"{prefix}-{stage}"]
    if definition["type"] == "multinode":
        (nodes,) = definition["nodeProperties"]["nodeRangeProperties"]
        return nodes["container"]
    return definition["containerProperties"]


def as_parameters(value: Any, shape: Any) -> Any:
    """Write properties as the call's parameters: other capitals, numbers for texts, a text for a list of ids.

    Unknown properties stay.
    """
    if shape.type_name == "structure" and isinstance(value, dict):
        members = {name.lower(): (name, member) for name, member in shape.members.items()}
        named = {key: members.get(key.lower(), (key, None)) for key in value}
        return {
            name: as_parameters(value[key], member) if member else value[key] for key, (name, member) in named.items()
        }
    if shape.type_name == "list" and isinstance(value, list):
        return [as_parameters(each, shape.member) for each in value]
    if shape.type_name == "map" and isinstance(value, dict):
        return {key: as_parameters(each, shape.value) for key, each in value.items()}
    if shape.type_name == "string" and isinstance(value, list):
        return ",".join(value)
    if shape.type_name in ("integer", "long") and isinstance(value, str) and value.lstrip("-").isdecimal():
        return int(value)
    return value


def not_listed(value: Any, shape: Any, path: str = "") -> list[str]:
    """Values of a parameter for which the service lists the possible ones, and that are not among them."""
    if shape.type_name == "structure" and isinstance(value, dict):
        pairs = [(value[name], member, f"{path}.{name}") for name, member in shape.members.items() if name in value]
    elif shape.type_name == "list" and isinstance(value, list):
        pairs = [(each, shape.member, f"{path}[{number}]") for number, each in enumerate(value)]
    else:
        listed = getattr(shape, "enum", [])
        return [f"{path}: {value!r} is none of {listed}"] if listed and value not in listed else []
    return [problem for pair in pairs for problem in not_listed(*pair)]
