"""The CloudFormation template as AWS would see it: loops unrolled, parameters put in, functions resolved.

A stand-in for CloudFormation's evaluation, of the functions that the template uses. What only AWS knows, as the id of a
subnet, is made up.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

TEMPLATE = Path(__file__).resolve().parents[3] / "infra/aws/millrace.yaml"
ON_EKS = TEMPLATE.with_name("eks.yaml")
STACK_ON_EKS = {
    "ClusterArn": "arn:aws:eks:us-east-1:123456789012:cluster/shop",
    "InstanceProfileArn": "arn:aws:iam::123456789012:instance-profile/node",
    "SubnetIds": "subnet-0123456789abcdef0",
    "SecurityGroupIds": "sg-0123456789abcdef0",
    "WorkerImage": "cpu-image",
    "GpuImage": "gpu-image",
    "GpuMaxVcpus": "192",
}
REGION, ACCOUNT = "us-east-1", "123456789012"
_LOOP = "Fn::ForEach::"
_NOTHING = object()  # AWS::NoValue
_FUNCTIONS = {"Ref", "GetAtt", "Sub", "If", "FindInMap", "Equals", "Not", "And", "Or", "Condition"}
_FUNCTIONS |= {"Base64", "Join", "Select", "Split"}
_AMI = "ami-0123456789abcdef0"


class _Loader(yaml.SafeLoader):
    """YAML with CloudFormation's short functions, as {"Sub": value} and so on."""


def _function(loader: _Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        return {suffix: loader.construct_scalar(node)}
    if isinstance(node, yaml.SequenceNode):
        return {suffix: loader.construct_sequence(node, deep=True)}
    assert isinstance(node, yaml.MappingNode)
    return {suffix: loader.construct_mapping(node, deep=True)}


_Loader.add_multi_constructor("!", _function)  # pyright: ignore[reportUnknownMemberType]


@cache
def template(of: Path = TEMPLATE) -> dict[str, Any]:
    """A template with its loops unrolled, and all other functions as they are written."""
    read = yaml.load(of.read_text(), _Loader)
    lists = {
        name: one["Default"].split(",")
        for name, one in read["Parameters"].items()
        if one["Type"] == "CommaDelimitedList"
    }
    return read | {section: _unrolled(read[section], lists) for section in ("Resources", "Outputs")}


def resources(kind: str) -> dict[str, dict[str, Any]]:
    """The properties of all resources of a kind, with functions as they are written."""
    return {name: one["Properties"] for name, one in template()["Resources"].items() if one["Type"] == kind}


def made(kind: str, of: Path = TEMPLATE, /, **parameters: str) -> dict[str, dict[str, Any]]:
    """The properties of the resources of a kind that a stack with these parameters has, with functions resolved."""
    stack = _Stack(parameters, of)
    return {
        name: stack.resolve(one["Properties"])
        for name, one in template(of)["Resources"].items()
        if one["Type"] == kind and ("Condition" not in one or stack.condition(one["Condition"]))
    }


def flat(of: Path = TEMPLATE, /, **parameters: str) -> dict[str, Any]:
    """The template of a stack with these parameters, in JSON's long form: loops, conditions and mappings are resolved.

    What one resource says of another is left as Ref, Fn::GetAtt and Fn::Sub.
    """
    stack = _Written(parameters, of)
    return {
        section: {
            name: stack.resolve({key: value for key, value in one.items() if key != "Condition"})
            for name, one in template(of)[section].items()
            if "Condition" not in one or stack.condition(one["Condition"])
        }
        for section in ("Resources", "Outputs")
    }


def _unrolled(section: Mapping[str, Any], lists: Mapping[str, list[str]]) -> dict[str, Any]:
    """A loop over a parameter goes over its default."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        if key.startswith(_LOOP):
            variable, collection, body = value
            for item in lists[collection["Ref"]] if isinstance(collection, dict) else collection:
                found |= _replaced(body, variable, item)
        else:
            found[key] = value
    return found


def _replaced(value: Any, variable: str, item: str) -> Any:
    if value == {"Ref": variable}:
        return item
    if isinstance(value, str):
        return value.replace(f"${{{variable}}}", item).replace(f"&{{{variable}}}", re.sub(r"\W|_", "", item))
    if isinstance(value, dict):
        return {_replaced(key, variable, item): _replaced(each, variable, item) for key, each in value.items()}
    return [_replaced(each, variable, item) for each in value] if isinstance(value, list) else value


class _Stack:
    def __init__(self, parameters: Mapping[str, str], of: Path = TEMPLATE) -> None:
        self._of = of
        described = template(of)["Parameters"]
        assert set(parameters) <= set(described)
        self._values = {
            "AWS::Region": REGION,
            "AWS::AccountId": ACCOUNT,
            "AWS::Partition": "aws",
            "AcceleratorAmi": _AMI,
            **{name: str(one["Default"]) for name, one in described.items() if "Default" in one},
            **parameters,
        }
        lists = (name for name, one in described.items() if one["Type"].startswith("List<") and name in parameters)
        self._values |= {name: parameters[name].split(",") for name in lists}
        named = (name for name, one in described.items() if one["Type"].startswith("AWS::SSM::Parameter::Value"))
        self._values |= dict.fromkeys(named, _AMI)

    def condition(self, name: str) -> bool:
        return bool(self.resolve(template(self._of)["Conditions"][name]))

    def resolve(self, value: Any) -> Any:
        if isinstance(value, list):
            return [one for each in value if (one := self.resolve(each)) is not _NOTHING]
        if not isinstance(value, dict):
            return value
        if len(value) == 1:
            ((function, argument),) = value.items()
            if function.removeprefix("Fn::") in _FUNCTIONS and (function != "Condition" or isinstance(argument, str)):
                return getattr(self, f"_{function.removeprefix('Fn::').lower()}")(argument)
        return {key: one for key, each in value.items() if (one := self.resolve(each)) is not _NOTHING}

    def _ref(self, name: str) -> Any:
        if name == "AWS::NoValue":
            return _NOTHING
        return self._values[name] if name in self._values else self._made_up(name)

    def _getatt(self, target: Any) -> str:
        name, attribute = target.split(".") if isinstance(target, str) else (self.resolve(target[0]), target[1])
        return self._made_up(name, attribute)

    def _sub(self, argument: Any) -> str:
        text, own = argument if isinstance(argument, list) else (argument, {})
        values = {name: self.resolve(value) for name, value in own.items()}

        def put(found: re.Match[str]) -> str:
            name = found[1]
            if name in values:
                return values[name]
            return self._getatt(name) if "." in name else str(self._ref(name))

        return re.sub(r"\$\{([\w.:]+)\}", put, text)

    def _if(self, argument: list[Any]) -> Any:
        return self.resolve(argument[1] if self.condition(argument[0]) else argument[2])

    def _findinmap(self, argument: list[Any]) -> str:
        found = template(self._of)["Mappings"]
        for key in argument:
            found = found[self.resolve(key)]
        return found

    def _equals(self, argument: list[Any]) -> bool:
        return self.resolve(argument[0]) == self.resolve(argument[1])

    def _not(self, argument: list[Any]) -> bool:
        return not self.resolve(argument[0])

    def _and(self, argument: list[Any]) -> bool:
        return all(self.resolve(each) for each in argument)

    def _or(self, argument: list[Any]) -> bool:
        return any(self.resolve(each) for each in argument)

    def _condition(self, name: str) -> bool:
        return self.condition(name)

    def _join(self, argument: list[Any]) -> Any:
        return argument[0].join(self.resolve(argument[1]))

    def _base64(self, argument: Any) -> Any:
        return base64.b64encode(self.resolve(argument).encode()).decode()

    def _split(self, argument: list[Any]) -> list[str]:
        return self.resolve(argument[1]).split(argument[0])

    def _select(self, argument: list[Any]) -> str:
        return self.resolve(argument[1])[int(argument[0])]

    def _made_up(self, name: str, attribute: str = "") -> str:
        kind = template(self._of)["Resources"][name]["Type"]
        if kind == "AWS::ECR::Repository" and attribute == "RepositoryUri":
            return f"{ACCOUNT}.dkr.ecr.{REGION}.amazonaws.com/millrace/{name.lower()}"
        if kind == "AWS::EC2::SecurityGroup":
            return "sg-0123456789abcdef0"
        if attribute == "AvailabilityZone":
            return f"{REGION}a"
        if kind == "AWS::EC2::Subnet":
            return "subnet-0123456789abcdef0"
        if attribute == "LatestVersionNumber":
            return "1"
        if attribute == "Arn" or kind == "AWS::Batch::SchedulingPolicy":
            return f"arn:aws:{kind.split('::')[1].lower()}:{REGION}:{ACCOUNT}:{name}"
        return name


class _Written(_Stack):
    """References between resources stay as they are written."""

    def _ref(self, name: str) -> Any:
        return super()._ref(name) if name in self._values or name == "AWS::NoValue" else {"Ref": name}

    def _getatt(self, target: Any) -> Any:
        name, attribute = target.split(".") if isinstance(target, str) else (self.resolve(target[0]), target[1])
        return {"Fn::GetAtt": [name, attribute]}

    def _sub(self, argument: Any) -> Any:
        text, own = argument if isinstance(argument, list) else (argument, {})
        values = self._values | {name: self.resolve(value) for name, value in own.items()}
        text = re.sub(r"\$\{([\w:]+)\}", lambda found: str(values.get(found[1], found[0])), text)
        return {"Fn::Sub": text} if "${" in text else text

    def _join(self, argument: list[Any]) -> Any:
        return {"Fn::Join": [argument[0], self.resolve(argument[1])]}

    def _base64(self, argument: Any) -> Any:
        return {"Fn::Base64": self.resolve(argument)}
