"""CloudFormation's stand-in: a stack's resources made, changed and deleted in order, by the calls of their services.

moto's own CloudFormation knows no loops and no AWS::NoValue, and deletes a VPC before what is in it. moto has no
placement groups, scheduling policies and reservations at all: those are kept in a list here, and `describe` of them is
a look at the list. Skipped are the properties that no call of moto takes, and the bucket's policy.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

import boto3.session
from botocore import xform_name
from moto.core.types import Base64EncodedString
from moto.ec2.models import ec2_backends

from tests.support.cloud.requests import as_parameters, operation
from tests.support.cloud.template import ACCOUNT, REGION, TEMPLATE, flat


class Kind(NamedTuple):
    """Calls that make and delete a resource; `id` is where the reply has its id, `gone` the parameter that takes it."""

    service: str
    make: str
    id: str
    delete: str
    gone: str


KINDS = {
    "AWS::EC2::VPC": Kind("ec2", "CreateVpc", "Vpc.VpcId", "DeleteVpc", "VpcId"),
    "AWS::EC2::InternetGateway": Kind(
        *("ec2", "CreateInternetGateway", "InternetGateway.InternetGatewayId"),
        *("DeleteInternetGateway", "InternetGatewayId"),
    ),
    "AWS::EC2::Subnet": Kind("ec2", "CreateSubnet", "Subnet.SubnetId", "DeleteSubnet", "SubnetId"),
    "AWS::EC2::EIP": Kind("ec2", "AllocateAddress", "AllocationId", "ReleaseAddress", "AllocationId"),
    "AWS::EC2::NatGateway": Kind(
        "ec2", "CreateNatGateway", "NatGateway.NatGatewayId", "DeleteNatGateway", "NatGatewayId"
    ),
    "AWS::EC2::RouteTable": Kind(
        "ec2", "CreateRouteTable", "RouteTable.RouteTableId", "DeleteRouteTable", "RouteTableId"
    ),
    "AWS::EC2::SubnetRouteTableAssociation": Kind(
        "ec2", "AssociateRouteTable", "AssociationId", "DisassociateRouteTable", "AssociationId"
    ),
    "AWS::EC2::VPCEndpoint": Kind(
        "ec2", "CreateVpcEndpoint", "VpcEndpoint.VpcEndpointId", "DeleteVpcEndpoints", "VpcEndpointIds"
    ),
    "AWS::EC2::Volume": Kind("ec2", "CreateVolume", "VolumeId", "DeleteVolume", "VolumeId"),
    "AWS::EC2::LaunchTemplate": Kind(
        *("ec2", "CreateLaunchTemplate", "LaunchTemplate.LaunchTemplateId"),
        *("DeleteLaunchTemplate", "LaunchTemplateId"),
    ),
    "AWS::ECR::Repository": Kind(
        "ecr", "CreateRepository", "repository.repositoryName", "DeleteRepository", "repositoryName"
    ),
    "AWS::Logs::LogGroup": Kind("logs", "CreateLogGroup", "", "DeleteLogGroup", "logGroupName"),
    "AWS::Batch::ComputeEnvironment": Kind(
        "batch", "CreateComputeEnvironment", "computeEnvironmentArn", "DeleteComputeEnvironment", "computeEnvironment"
    ),
    "AWS::Batch::JobQueue": Kind("batch", "CreateJobQueue", "jobQueueArn", "DeleteJobQueue", "jobQueue"),
    "AWS::Batch::JobDefinition": Kind(
        "batch", "RegisterJobDefinition", "jobDefinitionArn", "DeregisterJobDefinition", "jobDefinition"
    ),
}
LISTED = {"AWS::EC2::PlacementGroup", "AWS::Batch::SchedulingPolicy"}  # moto has none
SERVICE_LINKED = "/aws-service-role/"
NAMES = {  # of resources that the template leaves unnamed
    "AWS::EC2::LaunchTemplate": "LaunchTemplateName",
    "AWS::Batch::ComputeEnvironment": "computeEnvironmentName",
}


class StackFailed(Exception):
    """CREATE_FAILED, UPDATE_FAILED or DELETE_FAILED, and why."""


class Made(NamedTuple):
    kind: str
    properties: dict[str, Any]
    id: str
    attributes: dict[str, str]
    kept: bool  # DeletionPolicy: Retain


class Stack:
    """One stack of a template. `listed` holds what moto has no service for: `{name: type}`."""

    def __init__(self, name: str, listed: dict[str, str], of: Path = TEMPLATE) -> None:
        self.name, self._listed, self._of = name, listed, of
        self.parameters: dict[str, str] = {}
        self._made: dict[str, Made] = {}
        self.outputs: dict[str, str] = {}

    def deploy(self, changes: dict[str, str]) -> None:
        self.parameters |= changes
        wanted = flat(self._of, **self.parameters)
        for name in _in_order(wanted["Resources"]):
            one = wanted["Resources"][name]
            properties = self._resolved(one.get("Properties", {}))
            made = self._made.get(name)
            if made is None:
                own_id, attributes = self._make(name, one["Type"], properties)
            elif made.properties != properties:
                own_id, attributes = self._change(name, made, properties)
            else:
                continue
            kept = one.get("DeletionPolicy") == "Retain"
            self._made[name] = Made(one["Type"], properties, own_id, attributes, kept)
        for name in [each for each in reversed(self._made) if each not in wanted["Resources"]]:
            self._delete(name)
        self.outputs = {name: self._resolved(one["Value"]) for name, one in wanted["Outputs"].items()}

    def delete(self) -> None:
        for name in reversed(list(self._made)):
            self._delete(name)

    def _resolved(self, value: Any) -> Any:
        if isinstance(value, dict):
            if set(value) == {"Ref"}:
                return self._made[value["Ref"]].id
            if set(value) == {"Fn::GetAtt"}:
                name, attribute = value["Fn::GetAtt"]
                return self._made[name].attributes[attribute]
            if set(value) == {"Fn::Sub"}:
                return re.sub(r"\$\{(\w+)(?:\.(\w+))?\}", self._put, value["Fn::Sub"])
            if set(value) == {"Fn::Join"}:
                between, parts = value["Fn::Join"]
                return between.join(self._resolved(parts))
            if set(value) == {"Fn::Base64"}:
                return base64.b64encode(self._resolved(value["Fn::Base64"]).encode()).decode()
            return {key: self._resolved(each) for key, each in value.items()}
        return [self._resolved(each) for each in value] if isinstance(value, list) else value

    def _put(self, found: re.Match[str]) -> str:
        made = self._made[found[1]]
        return made.attributes[found[2]] if found[2] else made.id

    def _make(self, name: str, kind: str, properties: dict[str, Any]) -> tuple[str, dict[str, str]]:
        if kind in LISTED:
            self._listed[own_id := f"{self.name}-{name}"] = kind
            return own_id, {"Arn": own_id}
        if kind in BY_HAND:
            return BY_HAND[kind][0](f"{self.name}-{name}", properties)
        calls = KINDS[kind]
        shape = operation(calls.service, calls.make).input_shape
        found = as_parameters(properties, shape)
        request = {key: value for key, value in found.items() if key in shape.members}
        if kind in NAMES:
            request.setdefault(NAMES[kind], f"{self.name}-{name}")
        if kind == "AWS::Batch::ComputeEnvironment":
            request["serviceRole"] = _batchs_own_role()  # AWS takes it if none is named, moto does not
        reply = call(calls.service, calls.make, request)
        own_id = reply
        for key in calls.id.split(".") if calls.id else ():
            own_id = own_id[key]
        own_id = own_id if calls.id else request[calls.gone]
        return str(own_id), _attributes(kind, str(own_id), reply)

    def _change(self, name: str, made: Made, properties: dict[str, Any]) -> tuple[str, dict[str, str]]:
        if made.kind == "AWS::Batch::JobDefinition":
            new = self._make(name, made.kind, properties)
            self._delete(name)
            return new
        if made.kind == "AWS::EC2::LaunchTemplate":
            data = as_parameters(properties, operation("ec2", "CreateLaunchTemplate").input_shape)["LaunchTemplateData"]
            request = {"LaunchTemplateId": made.id, "LaunchTemplateData": data}
            reply = call("ec2", "CreateLaunchTemplateVersion", request)
            if text := data.get("UserData"):  # moto keeps it in a form that its Auto Scaling does not take
                template = ec2_backends[ACCOUNT][REGION].get_launch_template(made.id)
                template.latest_version().data["UserData"] = Base64EncodedString(text)
            return made.id, {"LatestVersionNumber": str(reply["LaunchTemplateVersion"]["VersionNumber"])}
        if made.kind == "AWS::Batch::ComputeEnvironment":  # moto changes no launch template
            call("batch", "UpdateComputeEnvironment", {"computeEnvironment": made.id, "state": "ENABLED"})
            return made.id, made.attributes
        if made.kind == "AWS::Events::Rule":
            return _rule(f"{self.name}-{name}", properties)
        if made.kind == "AWS::AutoScaling::AutoScalingGroup":  # which leaves its machines as they are
            given = {"AutoScalingGroupName": made.id, "LaunchTemplate": properties["LaunchTemplate"]}
            call("autoscaling", "UpdateAutoScalingGroup", given)
            return made.id, {}
        raise StackFailed(f"{name}: UPDATE_FAILED: no update of {made.kind} is written here")

    def _delete(self, name: str) -> None:
        made = self._made.pop(name)
        if made.kept:
            return
        if made.kind in LISTED:
            if users := [each for each, kind in self._listed.items() if kind == f"in {made.id}"]:
                raise StackFailed(f"{name}: DELETE_FAILED: in use by {users}")
            self._listed.pop(made.id)
        elif made.kind in BY_HAND:
            BY_HAND[made.kind][1](made.id, made.properties)
        else:
            _delete_simple(made)


def _batchs_own_role() -> str:
    """The service-linked role, which AWS makes with the account's first compute environment and keeps."""
    for role in call("iam", "ListRoles", {"PathPrefix": SERVICE_LINKED})["Roles"]:
        return role["Arn"]
    return call("iam", "CreateServiceLinkedRole", {"AWSServiceName": "batch.amazonaws.com"})["Role"]["Arn"]


def _delete_simple(made: Made) -> None:
    calls = KINDS[made.kind]
    request: dict[str, Any] = {calls.gone: [made.id] if calls.gone.endswith("Ids") else made.id}
    if made.kind == "AWS::EC2::Subnet":
        _unused("subnet-id", made.id)
    if made.kind == "AWS::ECR::Repository":
        request["force"] = made.properties.get("EmptyOnDelete", False)
    if made.kind in ("AWS::Batch::ComputeEnvironment", "AWS::Batch::JobQueue"):
        call("batch", calls.delete.replace("Delete", "Update"), request | {"state": "DISABLED"})
    call(calls.service, calls.delete, request)


def _unused(what: str, own_id: str) -> None:
    """AWS refuses to delete a subnet or a security group that a machine is in; moto does not."""
    found = call("ec2", "DescribeInstances", {"Filters": [{"Name": what, "Values": [own_id]}]})
    for one in (each for reservation in found["Reservations"] for each in reservation["Instances"]):
        if one["State"]["Name"] != "terminated":
            raise StackFailed(f"{own_id}: DELETE_FAILED: {one['InstanceId']} is in it")


def call(service: str, name: str, request: dict[str, Any]) -> dict[str, Any]:
    """Call an operation, as `CreateVpc`, of moto."""
    return getattr(client_of(service), xform_name(name))(**request)


@cache
def client_of(service: str) -> Any:
    return boto3.session.Session().client(service, region_name=REGION)


def _in_order(resources: dict[str, Any]) -> list[str]:
    graph = {
        name: {each for each in _named(one) if each in resources and each != name} | {*_listed(one.get("DependsOn"))}
        for name, one in resources.items()
    }
    return [*TopologicalSorter(graph).static_order()]


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value] if value else []


def _named(value: Any) -> Iterator[str]:
    """The resources that a value refers to."""
    if isinstance(value, dict):
        if "Ref" in value:
            yield value["Ref"]
        if "Fn::GetAtt" in value:
            yield value["Fn::GetAtt"][0]
        if "Fn::Sub" in value:
            yield from re.findall(r"\$\{(\w+)", value["Fn::Sub"])
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _named(each)


def _attributes(kind: str, own_id: str, reply: dict[str, Any]) -> dict[str, str]:
    if kind == "AWS::ECR::Repository":
        return {"RepositoryUri": reply["repository"]["repositoryUri"], "Arn": reply["repository"]["repositoryArn"]}
    if kind == "AWS::EC2::LaunchTemplate":
        return {"LatestVersionNumber": "1"}
    if kind == "AWS::EC2::Subnet":
        return {"AvailabilityZone": reply["Subnet"]["AvailabilityZone"]}
    return {"AllocationId": own_id} if kind == "AWS::EC2::EIP" else {}


# --- resources that take more than one call -------------------------------------------------------------------------


def _attach(name: str, p: dict[str, Any]) -> tuple[str, dict[str, str]]:
    call("ec2", "AttachInternetGateway", p)
    return name, {}


def _route(name: str, p: dict[str, Any]) -> tuple[str, dict[str, str]]:
    call("ec2", "CreateRoute", p)
    return name, {}


def _group(name: str, p: dict[str, Any]) -> tuple[str, dict[str, str]]:
    request = {"GroupName": name, "Description": p["GroupDescription"], "VpcId": p["VpcId"]}
    own_id = call("ec2", "CreateSecurityGroup", request)["GroupId"]
    return own_id, {"GroupId": own_id}


def _delete_group(own_id: str, _: dict[str, Any]) -> None:
    _unused("instance.group-id", own_id)
    call("ec2", "DeleteSecurityGroup", {"GroupId": own_id})


def _rule_of_group(p: dict[str, Any]) -> dict[str, Any]:
    one: dict[str, Any] = {"IpProtocol": p["IpProtocol"]}
    one |= {key: int(p[key]) for key in ("FromPort", "ToPort") if key in p}
    other = p.get("SourceSecurityGroupId") or p.get("DestinationSecurityGroupId")
    one |= {"UserIdGroupPairs": [{"GroupId": other}]} if other else {"IpRanges": [{"CidrIp": p["CidrIp"]}]}
    return {"GroupId": p["GroupId"], "IpPermissions": [one]}


def _rules(way: str) -> tuple[Any, Any]:
    def make(name: str, p: dict[str, Any]) -> tuple[str, dict[str, str]]:
        call("ec2", f"AuthorizeSecurityGroup{way}", _rule_of_group(p))
        return name, {}

    return make, lambda _, p: call("ec2", f"RevokeSecurityGroup{way}", _rule_of_group(p))


def _bucket(name: str, p: dict[str, Any]) -> tuple[str, dict[str, str]]:
    own_id = p.get("BucketName", f"{name.lower()}-{ACCOUNT}")
    call("s3", "CreateBucket", {"Bucket": own_id})
    call("s3", "PutBucketVersioning", {"Bucket": own_id, "VersioningConfiguration": p["VersioningConfiguration"]})
    return own_id, {"Arn": f"arn:aws:s3:::{own_id}"}


def _bucket_policy(name: str, p: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """Not put: moto reads no conditions, so that the refusal of plain HTTP would refuse all."""
    call("s3", "HeadBucket", {"Bucket": p["Bucket"]})
    return name, {}


def _role(name: str, p: dict[str, Any]) -> tuple[str, dict[str, str]]:
    document = json.dumps(p["AssumeRolePolicyDocument"])
    more = {key: p[key] for key in ("Path", "PermissionsBoundary") if key in p}
    made = call("iam", "CreateRole", {"RoleName": name, "AssumeRolePolicyDocument": document, **more})
    for policy in p.get("Policies", ()):
        given = {"PolicyName": policy["PolicyName"], "PolicyDocument": json.dumps(policy["PolicyDocument"])}
        call("iam", "PutRolePolicy", {"RoleName": name, **given})
    for arn in p.get("ManagedPolicyArns", ()):
        call("iam", "AttachRolePolicy", {"RoleName": name, "PolicyArn": arn})
    return name, {"Arn": made["Role"]["Arn"]}


def _delete_role(own_id: str, p: dict[str, Any]) -> None:
    for policy in p.get("Policies", ()):
        call("iam", "DeleteRolePolicy", {"RoleName": own_id, "PolicyName": policy["PolicyName"]})
    for arn in p.get("ManagedPolicyArns", ()):
        call("iam", "DetachRolePolicy", {"RoleName": own_id, "PolicyArn": arn})
    call("iam", "DeleteRole", {"RoleName": own_id})


def _profile(name: str, p: dict[str, Any]) -> tuple[str, dict[str, str]]:
    made = call("iam", "CreateInstanceProfile", {"InstanceProfileName": name, "Path": p["Path"]})
    for role in p["Roles"]:
        call("iam", "AddRoleToInstanceProfile", {"InstanceProfileName": name, "RoleName": role})
    return name, {"Arn": made["InstanceProfile"]["Arn"]}


def _delete_profile(own_id: str, p: dict[str, Any]) -> None:
    for role in p["Roles"]:
        call("iam", "RemoveRoleFromInstanceProfile", {"InstanceProfileName": own_id, "RoleName": role})
    call("iam", "DeleteInstanceProfile", {"InstanceProfileName": own_id})


def _policy(name: str, p: dict[str, Any]) -> tuple[str, dict[str, str]]:
    document = json.dumps(p["PolicyDocument"])
    made = call("iam", "CreatePolicy", {"PolicyName": name, "Path": p["Path"], "PolicyDocument": document})
    arn = made["Policy"]["Arn"]
    for role in p.get("Roles", ()):
        call("iam", "AttachRolePolicy", {"RoleName": role, "PolicyArn": arn})
    return arn, {}


def _delete_policy(own_id: str, p: dict[str, Any]) -> None:
    for role in p.get("Roles", ()):
        call("iam", "DetachRolePolicy", {"RoleName": role, "PolicyArn": own_id})
    call("iam", "DeletePolicy", {"PolicyArn": own_id})


def _rule(name: str, p: dict[str, Any]) -> tuple[str, dict[str, str]]:
    given = {key: p[key] for key in ("Description", "ScheduleExpression", "State")}
    call("events", "PutRule", {"Name": name, **given})
    call("events", "PutTargets", {"Rule": name, "Targets": p["Targets"]})
    return name, {}


def _delete_rule(own_id: str, p: dict[str, Any]) -> None:
    call("events", "RemoveTargets", {"Rule": own_id, "Ids": [one["Id"] for one in p["Targets"]]})
    call("events", "DeleteRule", {"Name": own_id})


def _secret(name: str, p: dict[str, Any]) -> tuple[str, dict[str, str]]:
    text = call("secretsmanager", "GetRandomPassword", p["GenerateSecretString"])["RandomPassword"]
    return call("secretsmanager", "CreateSecret", {"Name": name, "SecretString": text})["ARN"], {}


def _delete_secret(own_id: str, _: dict[str, Any]) -> None:
    call("secretsmanager", "DeleteSecret", {"SecretId": own_id, "ForceDeleteWithoutRecovery": True})


def _budget(name: str, p: dict[str, Any]) -> tuple[str, dict[str, str]]:
    request = as_parameters(p, operation("budgets", "CreateBudget").input_shape)
    call("budgets", "CreateBudget", {"AccountId": ACCOUNT, **request})
    return p["Budget"]["BudgetName"], {}


def _scaling_group(name: str, p: dict[str, Any]) -> tuple[str, dict[str, str]]:
    """moto starts its machines at once."""
    given = {key: int(p[key]) for key in ("MinSize", "MaxSize", "DesiredCapacity", "HealthCheckGracePeriod")}
    given |= {"LaunchTemplate": p["LaunchTemplate"], "VPCZoneIdentifier": ",".join(p["VPCZoneIdentifier"])}
    call("autoscaling", "CreateAutoScalingGroup", {"AutoScalingGroupName": name, **given})
    return name, {}


def _delete_scaling_group(own_id: str, _: dict[str, Any]) -> None:
    call("autoscaling", "DeleteAutoScalingGroup", {"AutoScalingGroupName": own_id, "ForceDelete": True})


BY_HAND: dict[str, tuple[Callable[[str, dict[str, Any]], tuple[str, dict[str, str]]], Callable[..., Any]]] = {
    "AWS::EC2::VPCGatewayAttachment": (_attach, lambda _, p: call("ec2", "DetachInternetGateway", p)),
    "AWS::EC2::Route": (
        _route,
        lambda _, p: call("ec2", "DeleteRoute", {key: p[key] for key in ("RouteTableId", "DestinationCidrBlock")}),
    ),
    "AWS::EC2::SecurityGroup": (_group, _delete_group),
    "AWS::EC2::SecurityGroupIngress": _rules("Ingress"),
    "AWS::EC2::SecurityGroupEgress": _rules("Egress"),
    "AWS::S3::Bucket": (_bucket, lambda own_id, _: call("s3", "DeleteBucket", {"Bucket": own_id})),
    "AWS::S3::BucketPolicy": (_bucket_policy, lambda _, p: call("s3", "HeadBucket", {"Bucket": p["Bucket"]})),
    "AWS::IAM::Role": (_role, _delete_role),
    "AWS::IAM::InstanceProfile": (_profile, _delete_profile),
    "AWS::IAM::ManagedPolicy": (_policy, _delete_policy),
    "AWS::Events::Rule": (_rule, _delete_rule),
    "AWS::SecretsManager::Secret": (_secret, _delete_secret),
    "AWS::AutoScaling::AutoScalingGroup": (_scaling_group, _delete_scaling_group),
    "AWS::Budgets::Budget": (
        _budget,
        lambda own_id, _: call("budgets", "DeleteBudget", {"AccountId": ACCOUNT, "BudgetName": own_id}),
    ),
}
