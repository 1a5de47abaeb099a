"""The CloudFormation template: valid, agrees with the code, and no role may do more than its stage does."""

import fnmatch
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from configs.load import load_config
from tasks.contracts.stages import TRAITS, Layout, Queue, compute_of

ROOT = Path(__file__).resolve().parents[3]
TEMPLATE = ROOT / "infra/aws/millrace.yaml"
STAGES = [work.value for work in TRAITS]
ON_NODES = [work.value for work, traits in TRAITS.items() if traits.layout is Layout.nodes]
ON_CPU = [work.value for work, traits in TRAITS.items() if traits.queue is Queue.cpu]

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
        "runs/old/validate/attempt-1/rows/2025-12/MANIFEST.json",
        "lineages/main/step-00000010/features.json",
        "golden/0123456789abcdef.parquet",
    ],
    "health": ["runs/r/health/attempt-1/spec.json"],
    "warmup": ["runs/r/validate/attempt-1/rows/2026-01/part-00000.parquet", "lineages/main/step-00000010/state.json"],
    "train": ["runs/old/validate/attempt-1/rows/2025-12/MANIFEST.json", "compile/k/MANIFEST.json"],
    "evaluate": [
        "runs/r/validate/attempt-1/rows/2026-01/MANIFEST.json",
        "lineages/main/step-00000010/state.json",
        "catalogue/k/part-00000.parquet",
        "vectors/m/k/part-00000.parquet",
        "golden/0123456789abcdef.parquet",
    ],
    "infer": ["catalogue/k/part-00000.parquet", "lineages/main/step-00000010/state.json"],
    "release": [
        "runs/r/validate/attempt-1/rows/2026-01/MANIFEST.json",
        "lineages/main/step-00000010/state.json",
        "catalogue/k/MANIFEST.json",
        "vectors/m/2026-01/MANIFEST.json",
    ],
    "import-checkpoint": ["runs/r/validate/attempt-1/rows/2026-01/MANIFEST.json"],
    "publish": ["releases/CURRENT", "releases/1.json", "vectors/m/c/part-00000.parquet"],
}
COMPILED = ["compile/k/MANIFEST.json", "compile/k.lease", "quarantine/compile/k/MODULE/model.neff.1"]
TOKENS = ["tokens/k/rows.bin", "tokens/k.lease", "quarantine/tokens/k.1/rows.bin"]
CHECKPOINTS = ["lineages/main/step-00000020/MANIFEST.json", "quarantine/lineages/main/step-00000020.1/state.json"]
WRITES = {
    "validate": ["runs/r/validate/attempt-1/quarantine/quarantine.parquet", "catalogue/k/part-00000.parquet"],
    "health": ["runs/r/health/attempt-1/probe-rank0/probe", "hosts/i-1.json"],
    "warmup": ["runs/r/warmup/attempt-1/compile-k-found", *COMPILED],
    "train": ["runs/r/train/attempt-1/tensorboard/events", *CHECKPOINTS, *COMPILED, *TOKENS],
    "evaluate": COMPILED,
    "infer": ["runs/r/infer/shards/part-00000.json", "vectors/m/2026-01/part-00000.parquet", *COMPILED],
    "release": ["models/m/modules.json"],
    "import-checkpoint": CHECKPOINTS,
    "publish": [],
}
# What none of them may change: the input, and what is released.
NEVER = ["spans/2026-01/v1/part-00000.parquet", "releases/1.json", "releases/CURRENT"]


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
def template() -> dict[str, Any]:
    return yaml.load(TEMPLATE.read_text(), _Loader)


def resources(kind: str) -> dict[str, dict[str, Any]]:
    return {name: one["Properties"] for name, one in template()["Resources"].items() if one["Type"] == kind}


def plain(value: Any) -> str:
    """A name or an ARN as it reads with the parameters' defaults; what only AWS knows is left as ${...}."""
    text = value if isinstance(value, str) else value.get("Sub") or f"${{{value.get('GetAtt') or value.get('Ref')}}}"
    defaults = {name: str(one["Default"]) for name, one in template()["Parameters"].items() if "Default" in one}
    return re.sub(r"\$\{(\w+)\}", lambda found: defaults.get(found[1], found[0]), text)


def definitions() -> dict[str, dict[str, Any]]:
    """Job definitions by name."""
    return {plain(one["JobDefinitionName"]): one for one in resources("AWS::Batch::JobDefinition").values()}


def container(stage: str) -> dict[str, Any]:
    definition = definitions()[f"millrace-{stage}"]
    if definition["Type"] == "multinode":
        (nodes,) = definition["NodeProperties"]["NodeRangeProperties"]
        return nodes["Container"]
    return definition["ContainerProperties"]


def statements() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every statement of every policy of the template, with the resource that it belongs to."""
    for name, role in resources("AWS::IAM::Role").items():
        for policy in role.get("Policies", ()):
            yield from ((name, one) for one in policy["PolicyDocument"]["Statement"])
    for name, policy in resources("AWS::IAM::ManagedPolicy").items():
        yield from ((name, one) for one in policy["PolicyDocument"]["Statement"])


def listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def may(stage: str, action: str, key: str) -> bool:
    """Whether the role of a stage allows an action on an object of the workspace."""
    role = container(stage)["JobRoleArn"]["GetAtt"].removesuffix(".Arn")
    arn = f"${{Bucket.Arn}}/main/{key}"
    return any(
        action in listed(one["Action"]) and any(fnmatch.fnmatchcase(arn, plain(r)) for r in listed(one["Resource"]))
        for owner, one in statements()
        if owner == role
    )


def test_cfn_lint_finds_nothing() -> None:
    linter = Path(sys.executable).with_name("cfn-lint")
    done = subprocess.run([linter, TEMPLATE], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("", 0), done.stdout + done.stderr


def test_each_stage_has_one_definition_and_there_are_no_others() -> None:
    name = load_config().batch.definition
    expected = {name.format(stage=stage): "multinode" if stage in ON_NODES else "container" for stage in STAGES}
    assert {name: definition["Type"] for name, definition in definitions().items()} == expected


def test_queues_and_shares_are_the_configured_ones() -> None:
    batch = load_config().batch
    queues = {plain(one["JobQueueName"]): one for one in resources("AWS::Batch::JobQueue").values()}
    assert set(queues) == {batch.cpu_queue, batch.accelerator_queue}
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


def test_the_default_limit_of_an_attempt_is_the_configured_one() -> None:
    assert template()["Parameters"]["AttemptSeconds"]["Default"] == load_config().batch.attempt_seconds
    for definition in definitions().values():
        assert definition["Timeout"] == {"AttemptDurationSeconds": {"Ref": "AttemptSeconds"}}


def test_there_is_one_efa_interface_per_network_card() -> None:
    interfaces = resources("AWS::EC2::LaunchTemplate")["AcceleratorTemplate"]["LaunchTemplateData"]["NetworkInterfaces"]
    machine = load_config().health.machines["trn1.32xlarge"]
    assert {one["InterfaceType"] for one in interfaces} == {"efa"}
    places = [(one["NetworkCardIndex"], one["DeviceIndex"]) for one in interfaces]
    assert places == [(card, int(card > 0)) for card in range(machine.efa_interfaces)]


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage not in ON_CPU])
def test_accelerator_stages_have_all_devices_and_the_whole_machine(stage: str) -> None:
    machine = load_config().health.machines["trn1.32xlarge"]
    devices = [one["HostPath"] for one in container(stage)["LinuxParameters"]["Devices"]]
    wanted = [f"/dev/neuron{number}" for number in range(machine.devices)]
    if stage in ON_NODES:
        wanted += [f"/dev/infiniband/uverbs{number}" for number in range(machine.efa_interfaces)]
    assert devices == wanted
    assert {"Name": "memlock", "SoftLimit": -1, "HardLimit": -1} in container(stage)["Ulimits"]
    needs = {one["Type"]: int(one["Value"]) for one in container(stage)["ResourceRequirements"]}
    assert 64 < needs["VCPU"] <= 128  # of 128: no second job fits on it
    assert needs["MEMORY"] < 481_894  # MiB that such a machine has left for containers


@pytest.mark.parametrize("stage", ON_NODES)
def test_multinode_definitions_are_for_any_number_of_nodes(stage: str) -> None:
    nodes = definitions()[f"millrace-{stage}"]["NodeProperties"]
    assert (nodes["NumNodes"], nodes["MainNode"]) == (1, 0)
    assert [one["TargetNodes"] for one in nodes["NodeRangeProperties"]] == ["0:"]


@pytest.mark.parametrize("stage", STAGES)
def test_containers_log_to_the_group_and_pass_signals_on(stage: str) -> None:
    found = container(stage)
    assert found["LogConfiguration"]["Options"]["awslogs-group"] == {"Ref": "LogGroup"}
    assert found["LinuxParameters"]["InitProcessEnabled"] is True
    assert found["User"] == {"Ref": "WorkerUser"}
    assert "Privileged" not in found


def test_multi_node_jobs_meet_batchs_conditions() -> None:
    """Managed, on demand, in one placement group in one subnet, each machine reachable from the others."""
    accelerator = resources("AWS::Batch::ComputeEnvironment")["AcceleratorEnvironment"]
    compute = accelerator["ComputeResources"]
    assert (accelerator["Type"], compute["Type"], compute["MinvCpus"]) == ("MANAGED", "EC2", 0)
    assert len(compute["Subnets"]) == 1
    assert resources("AWS::EC2::PlacementGroup")[compute["PlacementGroup"]["Ref"]] == {"Strategy": "cluster"}
    group = {"GetAtt": "NodeSecurityGroup.GroupId"}
    assert compute["SecurityGroupIds"] == [group]
    incoming = resources("AWS::EC2::SecurityGroupIngress")["NodesHearNodes"]
    outgoing = resources("AWS::EC2::SecurityGroupEgress")["NodesSpeakToNodes"]
    assert (incoming["GroupId"], incoming["SourceSecurityGroupId"], incoming["IpProtocol"]) == (group, group, "-1")
    assert (outgoing["GroupId"], outgoing["DestinationSecurityGroupId"], outgoing["IpProtocol"]) == (group, group, "-1")


def test_nothing_from_outside_reaches_a_machine() -> None:
    groups = resources("AWS::EC2::SecurityGroup").values()
    assert not any("SecurityGroupIngress" in group for group in groups)
    assert list(resources("AWS::EC2::SecurityGroupIngress")) == ["NodesHearNodes"]


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


@pytest.mark.parametrize("stage", STAGES)
def test_stages_may_read_and_write_what_their_workers_need(stage: str) -> None:
    written = [f"runs/r/{stage}/result.json", f"runs/r/{stage}/attempt-1/owner.json", *WRITES[stage]]
    read = ["hosts/i-1.json", *READS[stage]]
    assert [key for key in (*read, *written) if not may(stage, "s3:GetObject", key)] == []
    assert [key for key in written if not may(stage, "s3:PutObject", key)] == []
    assert [key for key in written if not may(stage, "s3:DeleteObject", key)] == []


@pytest.mark.parametrize("stage", STAGES)
def test_stages_may_not_write_what_belongs_to_others(stage: str) -> None:
    """No stage writes another one's results, the input, or what is released."""
    foreign = [f"runs/r/{other}/result.json" for other in STAGES if other != stage]
    if stage not in ("train", "import-checkpoint"):
        foreign += CHECKPOINTS
    if stage != "health":
        foreign.append("hosts/i-1.json")
    if stage != "infer":
        foreign.append("vectors/m/2026-01/MANIFEST.json")
    if stage != "release":
        foreign.append("models/m/modules.json")
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert [key for key in (*foreign, *NEVER) if may(stage, action, key)] == []


def test_the_control_plane_may_make_exactly_its_own_calls() -> None:
    calls = re.findall(
        r"self\._(batch|logs)\.([a-z]+_[a-z_]+)", (ROOT / "infra/compute/batch/client/api.py").read_text()
    )
    needed = {f"{service}:{''.join(word.capitalize() for word in call.split('_'))}" for service, call in calls}
    granted = {action for owner, one in statements() if owner == "ControlPolicy" for action in listed(one["Action"])}
    assert {"batch:SubmitJob", "logs:GetLogEvents"} <= needed
    assert needed <= granted
    assert {action for action in granted if not action.startswith("s3:")} - needed == {"batch:TagResource"}


def test_the_control_plane_may_end_only_its_own_jobs() -> None:
    found = [one for owner, one in statements() if owner == "ControlPolicy"]
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


@pytest.mark.parametrize("nodes", [1, 4])
def test_the_settings_for_trainium_are_for_these_machines(nodes: int) -> None:
    """Two NeuronCores on each device, a process for each, and room for as many machines as are asked for."""
    workers = [f"train.workers={32 * nodes}", f"infer.workers={32 * nodes}", f"train.batch_rows={2048 * nodes}"]
    config = load_config(ROOT / "configs/trainium.yaml", workers)
    assert {compute_of(config, work) for work in TRAITS} == {"batch"}
    machine = template()["Parameters"]["AcceleratorType"]["Default"]
    assert config.health.machine == machine
    assert config.batch.processes_per_node == 2 * config.health.machines[machine].devices
    assert nodes <= int(template()["Parameters"]["AcceleratorNodes"]["Default"])


def test_images_are_scanned_and_a_tag_never_changes() -> None:
    repositories = resources("AWS::ECR::Repository")
    assert len(repositories) == 3
    for one in repositories.values():
        assert one["ImageScanningConfiguration"] == {"ScanOnPush": True}
        assert one["ImageTagMutability"] == "IMMUTABLE"
        assert "LifecyclePolicy" in one


def test_the_machines_driver_fits_the_images_runtime() -> None:
    """Neuron SDK 2.30 has runtime library 2.32, which works with driver 2.27 or 2.28."""
    driver = re.search(r"^NEURON_DRIVER=(\d+\.\d+)", (ROOT / "infra/aws/ami.sh").read_text(), re.M)
    image = re.search(r"^FROM \S+sdk(\d+\.\d+)", (ROOT / "infra/images/worker-neuron.Dockerfile").read_text(), re.M)
    assert driver is not None
    assert image is not None
    assert (image[1], driver[1]) in {("2.30", "2.27"), ("2.30", "2.28")}
