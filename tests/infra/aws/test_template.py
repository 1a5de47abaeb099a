"""The CloudFormation template: valid, agrees with the code, and no role may do more than its stage does."""

import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from configs.load import load_config
from tasks.contracts.kinds import ROOTS
from tasks.contracts.stages import WORKS, Queue
from tests.support.cloud.requests import container
from tests.support.cloud.template import TEMPLATE, made, resources, template

ROOT = Path(__file__).resolve().parents[3]
STAGES = [work.value for work in WORKS]

# What no resource can be named for, and why.
WITHOUT_RESOURCES = {
    "ecr:GetAuthorizationToken": "the token is for the registry, not for a repository",
    "batch:DescribeJobs": "Batch knows resources for actions that change something only",
    "batch:ListJobs": "as DescribeJobs",
    "batch:DescribeJobQueues": "as DescribeJobs",
    "batch:DescribeJobDefinitions": "as DescribeJobs",
}

# One key for each kind of object that a stage's worker or its launcher reads, and that they write, move or delete.
READS = {
    "validate": [
        "spans/2026-01/v1/part-00000.parquet",
        "items/2026-01/v1/part-00000.parquet",
        "runs/old/validate/rows/2025-12/MANIFEST.json",
        "lineages/main/step-00000010/features.json",
        "golden/0123456789abcdef.parquet",
    ],
    "health": ["runs/r/health/attempt-1/spec.json"],
    "warmup": ["runs/r/validate/rows/2026-01/part-00000.parquet", "lineages/main/step-00000010/state.json"],
    "train": [
        "runs/old/validate/rows/2025-12/MANIFEST.json",
        "compile/k/MANIFEST.json",
        "catalogue/k/part-00000.parquet",
        "vectors/m/k/part-00000.parquet",
    ],
    "evaluate": [
        "runs/r/validate/rows/2026-01/MANIFEST.json",
        "lineages/main/step-00000010/state.json",
        "catalogue/k/part-00000.parquet",
        "vectors/m/k/part-00000.parquet",
        "golden/0123456789abcdef.parquet",
    ],
    "infer": ["catalogue/k/part-00000.parquet", "lineages/main/step-00000010/state.json"],
    "release": [
        "runs/r/validate/rows/2026-01/MANIFEST.json",
        "lineages/main/step-00000010/state.json",
        "catalogue/k/MANIFEST.json",
        "vectors/m/2026-01/MANIFEST.json",
    ],
    "import-checkpoint": ["runs/r/validate/rows/2026-01/MANIFEST.json"],
    "publish": ["releases/CURRENT", "releases/1.json", "vectors/m/c/part-00000.parquet"],
}
FENCE = ".locks/lineages/main.run.fence"  # every worker looks at it before it writes
COMPILED = ["compile/k/MANIFEST.json", "compile/k.lease", "quarantine/compile/k/MODULE/model.neff.1"]
TOKENS = ["tokens/k/rows.bin", "tokens/k.lease", "quarantine/tokens/k.1/rows.bin"]
NEGATIVES = ["negatives/k/items.parquet", "quarantine/negatives/k.1/items.parquet"]
CHECKPOINTS = ["lineages/main/step-00000020/MANIFEST.json", "quarantine/lineages/main/step-00000020.1/state.json"]
WRITES = {
    "validate": ["runs/r/validate/attempt-1/quarantine/quarantine.parquet", "catalogue/k/part-00000.parquet"],
    "health": ["runs/r/health/attempt-1/probe-rank0/probe", "hosts/i-1.json", *COMPILED],
    "warmup": ["runs/r/warmup/attempt-1/compile-k-found", *COMPILED],
    "train": ["runs/r/train/attempt-1/tensorboard/events", *CHECKPOINTS, *COMPILED, *TOKENS, *NEGATIVES],
    "evaluate": COMPILED,
    "infer": ["runs/r/infer/shards/part-00000.json", "vectors/m/2026-01/part-00000.parquet", *COMPILED],
    "release": ["models/m/modules.json"],
    "import-checkpoint": CHECKPOINTS,
    "publish": [],
}
# Where they work, if not for runs alone.
ROOTS_OF = {
    "validate": ["runs", "refreshes"],
    "infer": ["runs", "refreshes"],
    "release": ["runs", "refreshes"],
    "publish": ["publications"],
}
# What none of them may change: the input, and what is released.
NEVER = ["spans/2026-01/v1/part-00000.parquet", "releases/1.json", "releases/CURRENT"]


def plain(value: Any) -> str:
    """A name or an ARN as it reads with the parameters' defaults; what only AWS knows is left as ${...}."""
    text = value if isinstance(value, str) else value.get("Sub") or f"${{{value.get('GetAtt') or value.get('Ref')}}}"
    text = text[0] if isinstance(text, list) else text  # with names of its own
    defaults = {name: str(one["Default"]) for name, one in template()["Parameters"].items() if "Default" in one}
    return re.sub(r"\$\{(\w+)\}", lambda found: defaults.get(found[1], found[0]), text)


def statements() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every statement of every policy of the template, with the resource that it belongs to."""
    for name, role in resources("AWS::IAM::Role").items():
        for policy in role.get("Policies", ()):
            yield from ((name, one) for one in policy["PolicyDocument"]["Statement"])
    for name, policy in resources("AWS::IAM::ManagedPolicy").items():
        yield from ((name, one.get("If", [None, one])[1]) for one in policy["PolicyDocument"]["Statement"])


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def may(stage: str, action: str, key: str) -> bool:
    """Whether the role of a stage allows an action on an object of the workspace."""
    role = container(stage)["jobRoleArn"].rpartition(":")[2]
    arn = f"${{Bucket.Arn}}/main/{key}"
    return any(
        action in listed(one["Action"]) and any(fnmatch.fnmatchcase(arn, plain(r)) for r in listed(one["Resource"]))
        for owner, one in statements()
        if owner == role
    )


def on_accelerators(stage: str) -> bool:
    return next(work.traits.queue for work in WORKS if work.value == stage) is Queue.accelerator


@pytest.mark.parametrize("stage", STAGES)
def test_only_launchers_on_accelerators_end_machines_and_only_those_of_the_stack(stage: str) -> None:
    role = resources("AWS::IAM::Role")[container(stage)["jobRoleArn"].rpartition(":")[2]]
    assert role.get("ManagedPolicyArns", []) == ([{"Ref": "LeavePolicy"}] if on_accelerators(stage) else [])
    (ends,) = (one for owner, one in statements() if "ec2:TerminateInstances" in listed(one["Action"]))
    (tag,) = ends["Condition"]["StringEquals"]
    name = tag.removeprefix("aws:ResourceTag/")
    for environment in resources("AWS::Batch::ComputeEnvironment").values():
        if environment["ComputeResources"]["Type"] == "FARGATE":  # AWS's own machines
            continue
        assert environment["ComputeResources"]["Tags"][name] == ends["Condition"]["StringEquals"][tag]


def test_cfn_lint_finds_nothing() -> None:
    linter = Path(sys.executable).with_name("cfn-lint")
    done = subprocess.run([linter, TEMPLATE], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("", 0), done.stdout + done.stderr


def test_a_budget_writes_before_the_month_exceeds_it_and_only_where_an_address_is_given() -> None:
    assert made("AWS::Budgets::Budget") == {}
    (found,) = made("AWS::Budgets::Budget", BudgetEmail="ana@example.com", BudgetDollars="600").values()
    assert found["Budget"]["BudgetLimit"] == {"Amount": "600", "Unit": "USD"}
    assert found["Budget"]["TimeUnit"] == "MONTHLY"
    told = {
        (each["Notification"]["NotificationType"], each["Notification"]["Threshold"]): each["Subscribers"]
        for each in found["NotificationsWithSubscribers"]
    }
    assert told.keys() == {("ACTUAL", 80), ("FORECASTED", 100)}
    assert {address["Address"] for all_of in told.values() for address in all_of} == {"ana@example.com"}


def test_queues_and_shares_are_the_configured_ones() -> None:
    batch = load_config().batch
    queues = {one["JobQueueName"]: one for one in made("AWS::Batch::JobQueue").values()}
    assert set(queues) == {batch.cpu_queue, batch.accelerator_queue, "millrace-reap"}
    assert "SchedulingPolicyArn" in queues[batch.accelerator_queue]
    (policy,) = resources("AWS::Batch::SchedulingPolicy").values()
    identifiers = [one["ShareIdentifier"] for one in policy["FairsharePolicy"]["ShareDistribution"]]
    assert any(fnmatch.fnmatchcase(batch.share, identifier) for identifier in identifiers)


def test_queues_wait_for_capacity_longer_than_the_control_plane() -> None:
    """Each action is on one of the three reasons that Batch knows; capacity is waited for as long as configured."""
    patience = template()["Parameters"]["CapacitySeconds"]["Default"]
    assert patience > load_config().batch.capacity_seconds
    for queue in resources("AWS::Batch::JobQueue").values():
        limits = {one["Reason"]: one["MaxTimeSeconds"] for one in queue["JobStateTimeLimitActions"]}
        assert limits.pop("CAPACITY:INSUFFICIENT_INSTANCE_CAPACITY") == {"Ref": "CapacitySeconds"}
        assert set(limits) == {
            "MISCONFIGURATION:COMPUTE_ENVIRONMENT_MAX_RESOURCE",
            "MISCONFIGURATION:JOB_RESOURCE_REQUIREMENT",
        }


@pytest.mark.parametrize("name", ["AcceleratorTemplate", "CpuTemplate"])
def test_machines_are_encrypted_and_their_metadata_is_guarded(name: str) -> None:
    data = resources("AWS::EC2::LaunchTemplate")[name]["LaunchTemplateData"]
    assert data["MetadataOptions"]["HttpTokens"] == "required"
    assert data["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
    assert all(one["Ebs"]["Encrypted"] for one in data["BlockDeviceMappings"])


def test_the_bucket_keeps_versions_and_is_closed() -> None:
    bucket = resources("AWS::S3::Bucket")["Bucket"]
    assert bucket["VersioningConfiguration"] == {"Status": "Enabled"}
    assert all(bucket["PublicAccessBlockConfiguration"].values())
    assert len(bucket["PublicAccessBlockConfiguration"]) == 4
    assert "BucketEncryption" in bucket
    rules = bucket["LifecycleConfiguration"]["Rules"]
    assert any("NoncurrentVersionExpiration" in rule for rule in rules)
    assert any("AbortIncompleteMultipartUpload" in rule for rule in rules)
    assert not any("ExpirationInDays" in rule for rule in rules)  # nothing that is current ever goes by itself
    assert template()["Resources"]["Bucket"]["DeletionPolicy"] == "Retain"
    (deny,) = resources("AWS::S3::BucketPolicy")["BucketPolicy"]["PolicyDocument"]["Statement"]
    assert deny["Effect"] == "Deny"
    assert deny["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_only_actions_without_resources_are_allowed_on_all() -> None:
    on_all = {action for _, one in statements() if "*" in listed(one["Resource"]) for action in listed(one["Action"])}
    assert on_all == set(WITHOUT_RESOURCES)
    for owner, one in statements():
        assert not any("*" in action for action in listed(one["Action"])), owner


@pytest.mark.shows("least privilege")
@pytest.mark.parametrize("stage", STAGES)
def test_stages_may_read_and_write_what_their_workers_need(stage: str) -> None:
    folders = [f"{root}/r/{stage}" for root in ROOTS_OF.get(stage, ["runs"])]
    written = [
        *(f"{each}/{name}" for each in folders for name in ("result.json", "attempt-1/owner.json")),
        *WRITES[stage],
    ]
    written += ["hosts/i-1.json"] if on_accelerators(stage) else []
    read = ["hosts/i-1.json", FENCE, *READS[stage]]
    assert [key for key in (*read, *written) if not may(stage, "s3:GetObject", key)] == []
    assert [key for key in written if not may(stage, "s3:PutObject", key)] == []
    assert [key for key in written if not may(stage, "s3:DeleteObject", key)] == []


@pytest.mark.shows("least privilege")
@pytest.mark.parametrize("stage", STAGES)
def test_stages_may_not_write_what_belongs_to_others(stage: str) -> None:
    """No stage writes another one's results, the input, or what is released."""
    foreign = [f"{root}/r/{other}/result.json" for other in STAGES if other != stage for root in ROOTS]
    foreign += [f"{root}/r/{stage}/result.json" for root in ROOTS if root not in ROOTS_OF.get(stage, ["runs"])]
    if stage not in ("train", "import-checkpoint"):
        foreign += CHECKPOINTS
    if not on_accelerators(stage):
        foreign.append("hosts/i-1.json")
    if stage != "infer":
        foreign.append("vectors/m/2026-01/MANIFEST.json")
    if stage != "release":
        foreign.append("models/m/modules.json")
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert [key for key in (*foreign, *NEVER) if may(stage, action, key)] == []


@pytest.mark.parametrize("policy", ["ControlPolicy", "OperatorPolicy"])
def test_the_control_plane_may_make_exactly_its_own_calls(policy: str) -> None:
    calls = re.findall(r"self\._(batch|logs)\.([a-z]+_[a-z_]+)", (ROOT / "infra/compute/batch/api.py").read_text())
    needed = {f"{service}:{''.join(word.capitalize() for word in call.split('_'))}" for service, call in calls}
    granted = {action for owner, one in statements() if owner == policy for action in listed(one["Action"])}
    assert {"batch:SubmitJob", "logs:GetLogEvents"} <= needed
    assert needed <= granted
    assert {action for action in granted if not action.startswith(("s3:", "kms:"))} - needed == {"batch:TagResource"}


@pytest.mark.parametrize("policy", ["ControlPolicy", "OperatorPolicy"])
def test_the_control_plane_may_end_only_its_own_jobs(policy: str) -> None:
    found = [one for owner, one in statements() if owner == policy]
    (ends,) = (one for one in found if "batch:TerminateJob" in listed(one["Action"]))
    assert ends["Condition"] == {"Null": {"aws:ResourceTag/millrace": "false"}}
    (submits,) = (one for one in found if "batch:SubmitJob" in listed(one["Action"]))
    batch = load_config().batch
    names = [
        f"job-queue/{batch.cpu_queue}",
        f"job-queue/{batch.accelerator_queue}",
        *(f"job-definition/{batch.definition.format(stage=stage)}:3" for stage in STAGES),
    ]
    arns = [plain(one).partition("${AWS::AccountId}:")[2] for one in submits["Resource"]]
    assert [name for name in names if not any(fnmatch.fnmatchcase(name, arn) for arn in arns)] == []


def test_the_workers_group_gets_the_devices_whatever_a_driver_says() -> None:
    """Of udev's rules the last one counts, in the order of the files' names; packages bring files like this one."""
    (name,) = re.findall(r"cat > /etc/udev/rules\.d/(\S+)", (ROOT / "infra/aws/ami.sh").read_text())
    assert sorted([name, "60-rdma-ndd.rules", "99-efa.rules", "neuron-udev.rules"])[-1] == name


def test_the_machines_driver_fits_the_images_runtime() -> None:
    """Neuron SDK 2.30 has runtime library 2.32, which works with driver 2.27 or 2.28."""
    driver = re.search(r"^NEURON_DRIVER=(\d+\.\d+)", (ROOT / "infra/aws/ami.sh").read_text(), re.M)
    image = re.search(r"^FROM \S+sdk(\d+\.\d+)", (ROOT / "infra/images/worker-neuron.Dockerfile").read_text(), re.M)
    assert driver is not None
    assert image is not None
    assert (image[1], driver[1]) in {("2.30", "2.27"), ("2.30", "2.28")}
