"""What the template must never allow, whatever its parameters. Each rule is also held against a breach of it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.cloud.template import template

Resources = dict[str, dict[str, Any]]
EVERYWHERE = ("0.0.0.0/0", "::/0")


def of_kind(found: Resources, *kinds: str) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((name, one["Properties"]) for name, one in found.items() if one["Type"].removeprefix("AWS::") in kinds)


def statements(found: Resources) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every statement of every policy, with the resource that it belongs to; trust policies too."""
    for name, one in of_kind(found, "IAM::Role", "IAM::ManagedPolicy", "S3::BucketPolicy"):
        documents = [one.get("AssumeRolePolicyDocument"), one.get("PolicyDocument")]
        documents += [policy["PolicyDocument"] for policy in one.get("Policies", ())]
        for document in filter(None, documents):
            yield from ((name, each.get("If", [None, each])[1]) for each in document["Statement"])


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def allowed(found: Resources) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((name, one) for name, one in statements(found) if one["Effect"] == "Allow")


def plain_text(value: Any) -> str:
    return json.dumps(value)


# Each gives the names of the resources that break it.
RULES: dict[str, Callable[[Resources], list[str]]] = {
    "disks are encrypted": lambda found: (
        [
            name
            for name, one in of_kind(found, "EC2::LaunchTemplate")
            for disk in one["LaunchTemplateData"]["BlockDeviceMappings"]
            if disk["Ebs"].get("Encrypted") is not True
        ]
        + [name for name, one in of_kind(found, "EC2::Volume") if one.get("Encrypted") is not True]
    ),
    "metadata needs a token": lambda found: [
        name
        for name, one in of_kind(found, "EC2::LaunchTemplate")
        if one["LaunchTemplateData"]["MetadataOptions"].get("HttpTokens") != "required"
    ],
    "buckets are encrypted and closed": lambda found: [
        name
        for name, one in of_kind(found, "S3::Bucket")
        if "BucketEncryption" not in one or list(one["PublicAccessBlockConfiguration"].values()) != [True] * 4
    ],
    "nothing from outside comes in": lambda found: [
        name
        for name, one in of_kind(found, "EC2::SecurityGroup", "EC2::SecurityGroupIngress")
        if "SecurityGroupIngress" in one or any(one.get(key) in EVERYWHERE for key in ("CidrIp", "CidrIpv6"))
    ],
    "only HTTPS goes out to everybody": lambda found: [
        name
        for name, one in of_kind(found, "EC2::SecurityGroup", "EC2::SecurityGroupEgress")
        for rule in one.get("SecurityGroupEgress", [one] if "IpProtocol" in one else [])
        if rule.get("CidrIp") in EVERYWHERE and (rule["FromPort"], rule["ToPort"]) != (443, 443)
    ],
    "no machine has a public address": lambda found: [
        name
        for name, one in of_kind(found, "EC2::Subnet", "EC2::LaunchTemplate")
        if '"MapPublicIpOnLaunch": true' in plain_text(one) or '"AssociatePublicIpAddress": true' in plain_text(one)
    ],
    "only AWS's services become a role": lambda found: [
        name
        for name, one in allowed(found)
        if "sts:AssumeRole" in listed(one["Action"]) and set(one["Principal"]) != {"Service"}
    ],
    "nothing is allowed to everybody": lambda found: [
        name for name, one in allowed(found) if "*" in listed(one.get("Principal")) or "NotPrincipal" in one
    ],
    "no policy allows all but something": lambda found: [
        name for name, one in allowed(found) if "NotAction" in one or "NotResource" in one
    ],
    "nobody changes rights or passes roles on": lambda found: [
        name for name, one in allowed(found) if any(action.startswith("iam:") for action in listed(one["Action"]))
    ],
    "no container is privileged or sees the host's files": lambda found: [
        name
        for name, one in of_kind(found, "Batch::JobDefinition")
        if '"Privileged": true' in plain_text(one) or '"Volumes"' in plain_text(one)
    ],
    "images are scanned and tags stay": lambda found: [
        name
        for name, one in of_kind(found, "ECR::Repository")
        if one.get("ImageScanningConfiguration") != {"ScanOnPush": True} or one["ImageTagMutability"] != "IMMUTABLE"
    ],
    "logs are kept for a time": lambda found: [
        name for name, one in of_kind(found, "Logs::LogGroup") if "RetentionInDays" not in one
    ],
    "machines are ended by their tag alone": lambda found: [
        name
        for name, one in allowed(found)
        if any(action.startswith("ec2:") for action in listed(one["Action"]))
        and not any(key.startswith("aws:ResourceTag/") for key in one.get("Condition", {}).get("StringEquals", {}))
    ],
    "each role is somebody's": lambda found: [
        name
        for name, _ in of_kind(found, "IAM::Role")
        if not any(name in plain_text(one) for other, one in found.items() if other != name)
    ],
}


def in_properties(resource: str, **changes: Any) -> Callable[[Resources], None]:
    return lambda found: found[resource]["Properties"].update(changes)


def in_statement(resource: str, **changes: Any) -> Callable[[Resources], None]:
    def change(found: Resources) -> None:
        one = found[resource]["Properties"]
        document = one["Policies"][0]["PolicyDocument"] if "Policies" in one else one["PolicyDocument"]
        document["Statement"][0].update(changes)

    return change


def in_launch(resource: str, key: str, value: Any) -> Callable[[Resources], None]:
    return lambda found: found[resource]["Properties"]["LaunchTemplateData"].update({key: value})


def trusts_all(found: Resources) -> None:
    found["TrainRole"]["Properties"]["AssumeRolePolicyDocument"]["Statement"][0]["Principal"] = {"AWS": "*"}


BREACHES: dict[str, Callable[[Resources], None]] = {
    "disks are encrypted": in_launch("CpuTemplate", "BlockDeviceMappings", [{"Ebs": {"VolumeSize": 9}}]),
    "metadata needs a token": in_launch("CpuTemplate", "MetadataOptions", {"HttpTokens": "optional"}),
    "buckets are encrypted and closed": in_properties(
        "Bucket", PublicAccessBlockConfiguration={"BlockPublicAcls": True}
    ),
    "nothing from outside comes in": in_properties("NodesHearNodes", CidrIp="0.0.0.0/0"),
    "only HTTPS goes out to everybody": in_properties(
        "NodesSpeakToNodes", CidrIp="0.0.0.0/0", IpProtocol="tcp", FromPort=0, ToPort=65535
    ),
    "no machine has a public address": in_properties("PrivateSubnet", MapPublicIpOnLaunch=True),
    "only AWS's services become a role": trusts_all,
    "nothing is allowed to everybody": in_statement("BucketPolicy", Effect="Allow"),
    "no policy allows all but something": in_statement("TrainRole", NotAction="s3:*"),
    "nobody changes rights or passes roles on": in_statement("TrainRole", Action=["iam:PassRole"]),
    "no container is privileged or sees the host's files": in_properties(
        "PublishDefinition", ContainerProperties={"Privileged": True}
    ),
    "images are scanned and tags stay": in_properties("WorkerRepository", ImageTagMutability="MUTABLE"),
    "logs are kept for a time": lambda found: found["LogGroup"]["Properties"].pop("RetentionInDays"),
    "machines are ended by their tag alone": in_statement("LeavePolicy", Condition={}),
    "each role is somebody's": lambda found: found.update(NobodysRole=found["TrainRole"]),
}


@pytest.mark.shows("least privilege")
@pytest.mark.parametrize("rule", RULES)
def test_the_template_keeps_the_rule_and_a_breach_is_found(rule: str) -> None:
    assert RULES[rule](template()["Resources"]) == []
    broken = copy.deepcopy(template()["Resources"])
    BREACHES[rule](broken)
    assert len(RULES[rule](broken)) == 1
