"""Parameters for accounts of an organisation (key, boundary, path, no NAT) and for publish targets (ports, secrets)."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

import pytest

from tests.infra.aws.test_template import ROOT, listed, plain, statements
from tests.support.cloud.requests import definitions
from tests.support.cloud.template import made, resources, template

KEY = "arn:aws:kms:us-east-1:123456789012:key/0123"
BOUNDARY = "arn:aws:iam::123456789012:policy/boundary"
OWN = {"VpcId": "vpc-0123", "PrivateSubnetId": "subnet-0123"}
IAM = ("AWS::IAM::Role", "AWS::IAM::ManagedPolicy", "AWS::IAM::InstanceProfile")
# Clients of the code, and what the agents of ECS, Fargate and the session manager call, by AWS's pages of endpoints.
CALLED = {"s3", "batch", "ec2", "ec2messages", "ecr.api", "ecr.dkr", "ecs", "ecs-agent", "ecs-telemetry", "logs"}
CALLED |= {"secretsmanager", "ssm", "ssmmessages", "sts"}


def matches(parameter: str, value: str) -> bool:
    return re.fullmatch(template()["Parameters"][parameter]["AllowedPattern"], value) is not None


def kinds(**parameters: str) -> set[str]:
    every = {one["Type"] for one in template()["Resources"].values()}
    return {kind for kind in every if made(kind, **parameters)}


def test_every_role_gets_the_boundary_and_everything_in_iam_the_path() -> None:
    for kind in IAM:
        for name, one in made(kind, RolePath="/teams/search/", PermissionsBoundary=BOUNDARY).items():
            assert one["Path"] == "/teams/search/", name
            assert one.get("PermissionsBoundary") == (BOUNDARY if kind == IAM[0] else None), name
    assert not any("PermissionsBoundary" in one for one in made(IAM[0]).values())
    assert [matches("RolePath", text) for text in ("/", "/teams/search/", "teams", "/teams")] == [
        True,
        True,
        False,
        False,
    ]


@pytest.mark.shows("least privilege")
def test_an_own_key_encrypts_all_that_is_stored_and_whoever_reads_the_bucket_may_use_it() -> None:
    stack = {"KmsKey": KEY}
    (bucket,) = made("AWS::S3::Bucket", **stack).values()
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule["ServerSideEncryptionByDefault"] == {"SSEAlgorithm": "aws:kms", "KMSMasterKeyID": KEY}
    assert rule["BucketKeyEnabled"] is True
    assert {one["KmsKeyId"] for one in made("AWS::Logs::LogGroup", **stack).values()} == {KEY}
    assert {one["EncryptionConfiguration"]["KmsKey"] for one in made("AWS::ECR::Repository", **stack).values()} == {KEY}
    for one in made("AWS::EC2::LaunchTemplate", **stack).values():
        assert {disk["Ebs"]["KmsKeyId"] for disk in one["LaunchTemplateData"]["BlockDeviceMappings"]} == {KEY}
    using = {owner for owner, one in statements() if "kms:Decrypt" in listed(one["Action"])}
    reading = {owner for owner, one in statements() if "s3:GetObject" in listed(one["Action"])}
    through = {one["Ref"] for one in resources("AWS::IAM::ManagedPolicy")["KeyPolicy"]["Roles"]}
    assert through | using == reading | {"KeyPolicy", "OrchestratorPolicy"}  # it reads secrets, no object
    for owner, one in statements():
        if any(action.startswith("kms:") for action in listed(one["Action"])):
            assert one["Resource"] == {"Ref": "KmsKey"}, owner
            assert "kms:ViaService" in one["Condition"]["StringEquals"], owner


def test_without_a_key_aws_keeps_its_own() -> None:
    (bucket,) = made("AWS::S3::Bucket").values()
    (rule,) = bucket["BucketEncryption"]["ServerSideEncryptionConfiguration"]
    assert rule == {"ServerSideEncryptionByDefault": {"SSEAlgorithm": "AES256"}}
    assert "KeyPolicy" not in made("AWS::IAM::ManagedPolicy")


@pytest.mark.parametrize("vpc", [{}, OWN | {"PrivateRouteTableId": "rtb-0123"}], ids=["made", "own"])
def test_a_subnet_without_nat_has_an_endpoint_of_every_service_that_is_called(vpc: dict[str, str]) -> None:
    stack = {"WayOut": "endpoints", **vpc}
    found = made("AWS::EC2::VPCEndpoint", **stack)
    assert {one["ServiceName"].partition(".us-east-1.")[2] for one in found.values()} == CALLED
    assert not kinds(**stack) & {
        "AWS::EC2::NatGateway",
        "AWS::EC2::EIP",
        "AWS::EC2::InternetGateway",
        "AWS::EC2::Route",
    }
    heard = made("AWS::EC2::SecurityGroupIngress", **stack)
    assert {name for name, one in heard.items() if one.get("FromPort") == 443} == {
        "EndpointsHearNode",
        "EndpointsHearControl",
    }
    clients = re.findall(r"client\(\s*\"([a-z0-9-]+)\"", "".join(p.read_text() for p in code()))
    assert set(clients) <= CALLED, "a client of the code has no endpoint"


def code() -> list[Any]:
    return [path for top in ("infra", "tasks", "flows") for path in (ROOT / top).rglob("*.py")]


def test_an_own_vpc_with_a_way_out_gets_nothing() -> None:
    assert not made("AWS::EC2::VPCEndpoint", **OWN)
    assert set(made("AWS::EC2::VPCEndpoint")) == {"S3Endpoint"}


def test_machines_reach_targets_on_their_ports_alone() -> None:
    def out(**parameters: str) -> set[tuple[str, str, str]]:
        rules = made("AWS::EC2::SecurityGroupEgress", **parameters).values()
        return {(one["CidrIp"], one["FromPort"], one["ToPort"]) for one in rules if "CidrIp" in one}

    assert out() == set()
    assert out(TargetCidr="10.0.0.0/16") == {("10.0.0.0/16", port, port) for port in ("5432", "6333", "9200")}
    assert matches("TargetCidr", "10.0.0.0/8")
    assert not matches("TargetCidr", "0.0.0.0/0"), "not the whole internet"


@pytest.mark.shows("least privilege")
def test_of_the_jobs_publish_alone_gets_names_of_secrets_and_may_read_them() -> None:
    named = "SHOP=millrace/shop:password,QDRANT_KEY=arn:aws:secretsmanager:us-east-1:123456789012:secret:millrace/q-1"
    assert matches("PublishSecrets", named)
    assert not matches("PublishSecrets", "geheim!")
    got = {
        name: [
            each["value"] for each in one["containerProperties"]["environment"] if each["name"] == "MILLRACE_SECRETS"
        ]
        for name, one in definitions(PublishSecrets=named).items()
        if "containerProperties" in one
    }
    assert {name: found for name, found in got.items() if found} == {"millrace-publish": [named]}
    readers = {owner for owner, one in statements() if "secretsmanager:GetSecretValue" in listed(one["Action"])}
    assert readers == {"PublishRole", "OrchestratorPolicy"}


@pytest.mark.shows("least privilege")
def test_settings_in_the_bucket_are_read_by_people_and_the_orchestrator_and_written_by_nobody() -> None:
    may = {
        (owner, action)
        for owner, one in statements()
        for resource in listed(one["Resource"])
        if fnmatch.fnmatchcase("${Bucket.Arn}/settings/team.yaml", plain(resource))
        for action in listed(one["Action"])
        if action.startswith("s3:") and plain(resource) != "*"
    }
    assert may == {(owner, "s3:GetObject") for owner in ("ReaderPolicy", "OperatorPolicy", "ControlPolicy")}


def test_no_schedule_starts_what_has_no_image() -> None:
    def states(**parameters: str) -> list[str]:
        return [one["State"] for one in made("AWS::Events::Rule", **parameters).values()]

    assert (states(), states(ImageTag="0.1.0")) == (["DISABLED"], ["ENABLED"])
