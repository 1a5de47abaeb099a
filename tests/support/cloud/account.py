"""An AWS account for the commands of a page: `aws`, answered by moto and by stand-ins for what moto lacks.

Lacking in moto: CloudFormation as the template needs it (stacks.py), placement groups, reservations, quotas, and the
user data of machines, which is not run: a machine that stops itself at its end is stopped by whoever waits for it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import jmespath
from botocore.exceptions import ClientError, WaiterError

from tests.support.cloud.cli import PAGED, Command, command, complaints, operation_of, request_of
from tests.support.cloud.stacks import SERVICE_LINKED, Stack, StackFailed, call, client_of
from tests.support.cloud.template import ACCOUNT
from tests.support.cloud.template import template as read_template

TOKEN = "token-of-the-registry"
RESERVED = "cr-0123456789abcdef0"
MOST_IN_A_CALL = 51_200  # bytes of a template that the command carries itself
# Everything that the template makes, by the call that lists it and the part of the reply.
LISTS = {
    "instances": (
        "ec2",
        "DescribeInstances",
        "Reservations[].Instances[?State.Name!='terminated'][].InstanceId",
    ),
    "volumes": ("ec2", "DescribeVolumes", "Volumes[].VolumeId"),
    "images": ("ec2", "DescribeImages", "Images[].ImageId"),
    "vpcs": ("ec2", "DescribeVpcs", "Vpcs[].VpcId"),
    "subnets": ("ec2", "DescribeSubnets", "Subnets[].SubnetId"),
    "route tables": ("ec2", "DescribeRouteTables", "RouteTables[].RouteTableId"),
    "gateways": ("ec2", "DescribeInternetGateways", "InternetGateways[].InternetGatewayId"),
    "nat": ("ec2", "DescribeNatGateways", "NatGateways[?State!='deleted'].NatGatewayId"),
    "addresses": ("ec2", "DescribeAddresses", "Addresses[].AllocationId"),
    "endpoints": ("ec2", "DescribeVpcEndpoints", "VpcEndpoints[?State!='deleted'].VpcEndpointId"),
    "groups": ("ec2", "DescribeSecurityGroups", "SecurityGroups[].GroupId"),
    "scaling groups": ("autoscaling", "DescribeAutoScalingGroups", "AutoScalingGroups[].AutoScalingGroupName"),
    "secrets": ("secretsmanager", "ListSecrets", "SecretList[].Name"),
    "launch templates": ("ec2", "DescribeLaunchTemplates", "LaunchTemplates[].LaunchTemplateId"),
    "environments": ("batch", "DescribeComputeEnvironments", "computeEnvironments[].computeEnvironmentName"),
    "queues": ("batch", "DescribeJobQueues", "jobQueues[].jobQueueName"),
    "definitions": ("batch", "DescribeJobDefinitions", "jobDefinitions[?status=='ACTIVE'].jobDefinitionArn"),
    "repositories": ("ecr", "DescribeRepositories", "repositories[].repositoryName"),
    "logs": ("logs", "DescribeLogGroups", "logGroups[].logGroupName"),
    "roles": ("iam", "ListRoles", f"Roles[?Path!='{SERVICE_LINKED}batch.amazonaws.com/'].RoleName"),
    "profiles": ("iam", "ListInstanceProfiles", "InstanceProfiles[].InstanceProfileName"),
    "rules": ("events", "ListRules", "Rules[].Name"),
    "buckets": ("s3", "ListBuckets", "Buckets[].Name"),
    "clusters": ("eks", "ListClusters", "clusters"),
    "budgets": ("budgets", "DescribeBudgets", "Budgets[].BudgetName"),
}


ASKED: dict[str, dict[str, Any]] = {"images": {"Owners": ["self"]}, "budgets": {"AccountId": ACCOUNT}}


class Refused(Exception):
    """What a command prints to standard error, with its exit status."""

    def __init__(self, text: str, code: int = 254) -> None:
        super().__init__(text)
        self.code = code


class Reply(NamedTuple):
    out: str = ""
    err: str = ""
    code: int = 0


class Account:
    """moto must be active."""

    def __init__(self) -> None:
        self.folder = Path()  # of the command
        self.stacks: dict[str, Stack] = {}
        self.listed: dict[str, str] = {}  # what moto has no service for, and its type

    def aws(self, words: list[str], folder: Path) -> Reply:
        """`aws WORDS` in a folder."""
        one, self.folder = command(words), folder
        try:
            if found := complaints(one._replace(patient=True)):
                raise Refused("; ".join(found), 252)
            own = OWN.get((one.service, one.words[0]))
            return Reply(_printed(own(self, one) if own else _called(one, folder), one))
        except Refused as error:
            return Reply(err=str(error), code=error.code)
        except (ClientError, WaiterError, StackFailed) as error:
            return Reply(err=str(error), code=254)

    def contents(self) -> dict[str, set[str]]:
        """The names of everything in the account, by kind."""
        found: dict[str, set[str]] = {
            kind: set(jmespath.search(path, call(service, name, ASKED.get(kind, {}))) or ())
            for kind, (service, name, path) in LISTS.items()
        }
        return found | {"policies": _policies(), "listed by hand": set(self.listed), "stacks": set(self.stacks)}

    def stack(self, name: str) -> Stack:
        if name not in self.stacks:
            raise Refused(f"Stack with id {name} does not exist")
        return self.stacks[name]


def _policies() -> set[str]:
    return {one["PolicyName"] for one in call("iam", "ListPolicies", {"Scope": "Local"})["Policies"]}


def _called(one: Command, folder: Path) -> Any:
    operation = operation_of(one)
    request = request_of(operation, {key: values for key, values in one.options.items() if key not in PAGED}, folder)
    reply = call(operation.service_model.service_name, operation.name, request)
    reply.pop("ResponseMetadata", None)
    if limit := one.options.get("max-items"):  # of all lists together, as the CLI counts
        left = int(limit[0])
        for key in [key for key, value in reply.items() if isinstance(value, list)]:
            reply[key] = reply[key][:left]
            left -= len(reply[key])
    return reply


def _printed(reply: Any, one: Command) -> str:
    if reply is None or isinstance(reply, str):
        return reply or ""
    for query in one.options.get("query", ()):
        reply = jmespath.search(query, reply)
    if one.options.get("output") != ["text"]:
        return json.dumps(reply, indent=4, default=str) + "\n"
    rows = reply if isinstance(reply, list) and reply and isinstance(reply[0], list) else [reply]
    return "".join("\t".join(map(str, row if isinstance(row, list) else [row])) + "\n" for row in rows)


# --- commands that moto can't answer -------------------------------------------------------------------------------


def _deploy(account: Account, one: Command) -> str:
    (name,), (file,) = one.options["stack-name"], one.options["template-file"]
    path = (account.folder / file).resolve()
    if bucket := one.options.get("s3-bucket"):
        call("s3", "HeadBucket", {"Bucket": bucket[0]})  # where the CLI puts the template
    elif path.stat().st_size > MOST_IN_A_CALL:
        raise Refused(f"Templates with a size greater than {MOST_IN_A_CALL} bytes must be deployed via an S3 Bucket")
    read = read_template(path)
    needed = {"CAPABILITY_AUTO_EXPAND"} if "Transform" in read else set[str]()
    if any(each["Type"].startswith("AWS::IAM::") for each in read["Resources"].values()):
        needed.add("CAPABILITY_IAM")
    if missing := needed - set(one.options["capabilities"]):
        raise Refused(f"InsufficientCapabilitiesException: {sorted(missing)}")
    changes = dict(each.split("=", 1) for each in one.options["parameter-overrides"])
    stack = account.stacks.get(name) or Stack(name, account.listed, path)
    given = stack.parameters | changes
    if unknown := given.keys() - read["Parameters"].keys():
        raise Refused(f"Parameters: {sorted(unknown)} do not exist in the template")
    for key, each in read["Parameters"].items():
        if given.get(key, each.get("Default")) in (None, "None") or not re.fullmatch(
            each.get("AllowedPattern", ".*"), given.get(key, "") or str(each.get("Default", ""))
        ):
            raise Refused(f"Parameters: [{key}] must have values, which match what the template allows")
    account.stacks[name] = stack
    stack.deploy(changes)
    return f"Successfully created/updated stack - {name}\n"


def _describe_stacks(account: Account, one: Command) -> Any:
    outputs = account.stack(one.options["stack-name"][0]).outputs
    return {"Stacks": [{"Outputs": [{"OutputKey": key, "OutputValue": text} for key, text in outputs.items()]}]}


def _delete_stack(account: Account, one: Command) -> None:
    (name,) = one.options["stack-name"]
    account.stack(name).delete()
    del account.stacks[name]


def _copy(account: Account, one: Command) -> str:
    file, address = one.words[1:]
    bucket, _, key = address.removeprefix("s3://").partition("/")
    call("s3", "PutObject", {"Bucket": bucket, "Key": key, "Body": (account.folder / file).read_bytes()})
    return f"upload: {file} to {address}\n"


def _cluster(_: Account, one: Command) -> Any:
    """AWS makes a security group for the cluster itself; moto has only the groups that were given."""
    reply = _called(one, Path())
    network = reply["cluster"]["resourcesVpcConfig"]
    network.setdefault("clusterSecurityGroupId", network["securityGroupIds"][0])
    return reply


def _make_bucket(_: Account, one: Command) -> str:
    bucket = one.words[1].removeprefix("s3://")
    call("s3", "CreateBucket", {"Bucket": bucket})
    return f"make_bucket: {bucket}\n"


def _remove_bucket(_: Account, one: Command) -> str:
    """With --force, objects go first, versions do not."""
    bucket = one.words[1].removeprefix("s3://")
    for each in call("s3", "ListObjectsV2", {"Bucket": bucket}).get("Contents", []) if "force" in one.options else []:
        call("s3", "DeleteObject", {"Bucket": bucket, "Key": each["Key"]})
    call("s3", "DeleteBucket", {"Bucket": bucket})
    return f"remove_bucket: {bucket}\n"


def _reserve(account: Account, one: Command) -> Any:
    request = request_of(operation_of(one), one.options)
    group = request["PlacementGroupArn"].rpartition("placement-group/")[2]
    if account.listed.get(group) != "AWS::EC2::PlacementGroup":
        raise Refused(f"InvalidPlacementGroup.Unknown: {group!r}")
    account.listed[RESERVED] = f"in {group}"
    return {"CapacityReservation": {"CapacityReservationId": RESERVED}}


def _cancel(account: Account, one: Command) -> Any:
    (name,) = one.options["capacity-reservation-id"]
    if account.listed.pop(name, None) is None:
        raise Refused(f"InvalidCapacityReservationId.NotFound: {name!r}")
    return {"Return": True}


def _reservations(account: Account, _: Command) -> Any:
    return {"CapacityReservations": [{"CapacityReservationId": RESERVED}] if RESERVED in account.listed else []}


def _start(account: Account, one: Command) -> Any:
    """A machine of an image that Systems Manager knows, and with a profile that exists; its user data are not run."""
    request = request_of(operation_of(one), one.options, account.folder)
    image: str = request["ImageId"]
    if not re.fullmatch(r"resolve:ssm:/aws/service/[\w/.-]+|ami-[0-9a-f]+", image):
        raise Refused(f"InvalidAMIID.Malformed: {image!r}")
    if profile := request.get("IamInstanceProfile"):
        call("iam", "GetInstanceProfile", {"InstanceProfileName": profile["Name"]})
    reply = call("ec2", "RunInstances", request)
    return {"Instances": reply["Instances"]}


def _attach(_: Account, one: Command) -> Any:
    """AWS refuses a volume that another machine has, of another zone, or to a machine that ends; moto does not."""
    request = request_of(operation_of(one), one.options)
    (volume,) = call("ec2", "DescribeVolumes", {"VolumeIds": [request["VolumeId"]]})["Volumes"]
    found = call("ec2", "DescribeInstances", {"InstanceIds": [request["InstanceId"]]})["Reservations"][0]["Instances"]
    if found[0]["State"]["Name"] != "running":
        raise Refused(f"IncorrectState: {request['InstanceId']} is not running")
    if found[0]["Placement"]["AvailabilityZone"] != volume["AvailabilityZone"]:
        raise Refused(f"InvalidVolume.ZoneMismatch: {request['VolumeId']} is in {volume['AvailabilityZone']}")
    if held := [each["InstanceId"] for each in volume["Attachments"] if _runs(each["InstanceId"])]:
        raise Refused(f"VolumeInUse: {request['VolumeId']} is already attached to an instance: {held[0]}")
    return call("ec2", "AttachVolume", request)


def _runs(instance: str) -> bool:
    reservations = call("ec2", "DescribeInstances", {"InstanceIds": [instance]})["Reservations"]
    return reservations[0]["Instances"][0]["State"]["Name"] != "terminated"


def _refresh(_: Account, one: Command) -> Any:
    """A group of one has no machine meanwhile, and so needs no healthy one; the next is of the newest template."""
    request = request_of(operation_of(one), one.options)
    (group,) = call(
        "autoscaling", "DescribeAutoScalingGroups", {"AutoScalingGroupNames": [request["AutoScalingGroupName"]]}
    )["AutoScalingGroups"]
    if request.get("Preferences", {}).get("MinHealthyPercentage") != 0:
        raise Refused("the machine that stays has the volume of the one that comes")
    for each in group["Instances"]:
        ended = {"InstanceId": each["InstanceId"], "ShouldDecrementDesiredCapacity": False}
        call("autoscaling", "TerminateInstanceInAutoScalingGroup", ended)
    return {"InstanceRefreshId": "08b91cf7-8fa6-48af-b6a6-d227f40f1b9b"}


def _wait(account: Account, one: Command) -> None:
    if one.words[1] == "instance-stopped":  # the machine's own last line
        call("ec2", "StopInstances", {"InstanceIds": one.options["instance-ids"]})
    if one.words[1] == "stack-delete-complete":
        if one.options["stack-name"][0] in account.stacks:
            raise Refused("Waiter StackDeleteComplete failed")
        return
    request = {"InstanceIds": one.options.get("instance-ids"), "ImageIds": one.options.get("image-ids")}
    waiter = client_of(one.service).get_waiter(one.words[1].replace("-", "_"))
    waiter.wait(**{key: value for key, value in request.items() if value}, WaiterConfig={"Delay": 0, "MaxAttempts": 2})


def _session(_: Account, one: Command) -> str:
    """A shell on a machine that runs, with a role that Systems Manager takes; its document is one of AWS's."""
    (target,) = one.options["target"]
    (found,) = call("ec2", "DescribeInstances", {"InstanceIds": [target]})["Reservations"][0]["Instances"]
    profile = found.get("IamInstanceProfile") or _profile_of_group(target)
    if found["State"]["Name"] != "running" or not profile:
        raise Refused(f"TargetNotConnected: {target} is not connected.")
    name = profile["Arn"].rpartition("/")[2]
    (role,) = call("iam", "GetInstanceProfile", {"InstanceProfileName": name})["InstanceProfile"]["Roles"]
    attached = call("iam", "ListAttachedRolePolicies", {"RoleName": role["RoleName"]})["AttachedPolicies"]
    if "AmazonSSMManagedInstanceCore" not in [each["PolicyName"] for each in attached]:
        raise Refused(f"TargetNotConnected: {target} is not connected.")
    return "Starting session\n"


def _profile_of_group(instance: str) -> dict[str, str]:
    """The profile in the launch template of a machine's group, which moto does not give the machine; {} if none."""
    found = call("autoscaling", "DescribeAutoScalingInstances", {"InstanceIds": [instance]})["AutoScalingInstances"]
    for template in (each["LaunchTemplate"] for each in found):
        asked = {"LaunchTemplateId": template["LaunchTemplateId"], "Versions": [template["Version"]]}
        (version,) = call("ec2", "DescribeLaunchTemplateVersions", asked)["LaunchTemplateVersions"]
        return version["LaunchTemplateData"].get("IamInstanceProfile", {})
    return {}


OWN: dict[tuple[str, str], Any] = {
    ("cloudformation", "deploy"): _deploy,
    ("cloudformation", "describe-stacks"): _describe_stacks,
    ("cloudformation", "delete-stack"): _delete_stack,
    ("cloudformation", "wait"): _wait,
    ("autoscaling", "start-instance-refresh"): _refresh,
    ("autoscaling", "describe-instance-refreshes"): lambda _, one: {"InstanceRefreshes": [{"Status": "Successful"}]},
    ("ec2", "attach-volume"): _attach,
    ("ec2", "wait"): _wait,
    ("ec2", "run-instances"): _start,
    ("ec2", "create-capacity-reservation"): _reserve,
    ("ec2", "cancel-capacity-reservation"): _cancel,
    ("ec2", "describe-capacity-reservations"): _reservations,
    ("eks", "describe-cluster"): _cluster,
    ("ecr", "get-login-password"): lambda _, one: f"{TOKEN}\n",
    ("s3", "cp"): _copy,
    ("s3", "mb"): _make_bucket,
    ("s3", "rb"): _remove_bucket,
    ("service-quotas", "list-service-quotas"): lambda _, one: {"Quotas": []},
    ("service-quotas", "request-service-quota-increase"): lambda _, one: {"RequestedQuota": {"Status": "PENDING"}},
    ("ssm", "start-session"): _session,
}
