"""Machines, queues and job definitions of the template: taken by AWS's own models of the calls, fit for the code.

Each kind of machine is a parameter, so each is checked.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from configs.instances import instances
from configs.load import load_config
from infra.compute.batch.job import evaluate_on_exit
from tasks.contracts.stages import WORKS, Layout, Queue, compute_of
from tests.emulator.containers.machines import MOST_OF_A_MACHINE, SIZES
from tests.support.cloud.requests import CALLS, container, definitions, problems, requests
from tests.support.cloud.template import REGION, TEMPLATE, made, template

ROOT = TEMPLATE.parents[2]
STAGES = [work.value for work in WORKS]
ON_NODES = [work.value for work in WORKS if work.traits.layout is Layout.nodes]
ON_CPU = [work.value for work in WORKS if work.traits.queue is Queue.cpu]
COMPUTES = [stage for stage in STAGES if stage not in ON_CPU]
PARAMETERS = template()["Parameters"]
ACCELERATORS: list[str] = PARAMETERS["AcceleratorType"]["AllowedValues"]
INFER: list[str] = PARAMETERS["InferType"]["AllowedValues"][1:]
GPUS: list[str] = PARAMETERS["GpuType"]["AllowedValues"][1:]
RESERVED = {"CapacityReservation": "cr-0123456789abcdef0"}
SPOT = {"InferMarket": "spot"}
# Every stack that differs in a kind of machine.
STACKS = [
    *({"AcceleratorType": kind, **more} for kind in ACCELERATORS for more in ({}, RESERVED)),
    *({"InferType": kind, **more} for kind in INFER for more in ({}, SPOT)),
    *({"GpuType": kind} for kind in GPUS),
    {"BudgetEmail": "ana@example.com", "BudgetDollars": "600"},
]


def written(stack: dict[str, str]) -> str:
    return " ".join(stack.values())


@pytest.mark.shows("template")
@pytest.mark.parametrize("stack", STACKS, ids=written)
@pytest.mark.parametrize("kind", CALLS)
def test_every_call_is_one_that_aws_knows(kind: str, stack: dict[str, str]) -> None:
    for name, request in requests(kind, **stack).items():
        assert problems(kind, request) == [], name


def test_a_call_that_aws_does_not_know_is_found() -> None:
    """The check itself: an unknown key, a wrong type, a value that is not listed, a missing key."""
    kind = "AWS::Batch::JobDefinition"
    (sound,) = (one for one in requests(kind).values() if one["jobDefinitionName"] == "millrace-infer")
    for change in ({"tries": 1}, {"timeout": 60}, {"type": "single"}, {"jobDefinitionName": None}):
        assert problems(kind, {key: value for key, value in (sound | change).items() if value is not None})


@pytest.mark.shows("template")
def test_a_stack_needs_no_more_than_cloudformation_takes() -> None:
    """A template that a command carries itself may have 51,200 bytes, one in a bucket 1 MB, loops unrolled too."""
    page = (ROOT / "docs/aws.md").read_text()
    (deploy,) = re.findall(r"^deploy\(\) { aws cloudformation deploy (?:.*\\\n)*.*$", page, re.M)
    assert "--s3-bucket" in deploy or TEMPLATE.stat().st_size <= 51_200
    assert len(json.dumps(template(), indent=1)) < 1_000_000
    assert len(template()["Resources"]) <= 500
    assert "Transform" not in template() or "CAPABILITY_AUTO_EXPAND" in deploy


def test_each_stage_has_one_definition_and_there_are_no_others() -> None:
    name = load_config().batch.definition
    expected = {name.format(stage=stage): "multinode" if stage in ON_NODES else "container" for stage in STAGES}
    expected |= {"millrace-reap": "container", "millrace-cpu-infer": "container"}
    assert {name: definition["type"] for name, definition in definitions().items()} == expected


@pytest.mark.parametrize("kind", ACCELERATORS)
def test_each_accelerator_gets_the_image_of_its_software(kind: str) -> None:
    """TorchNeuron's for Trn2; Inferentia's infer has PyTorch/XLA beside any. A named image is taken as it is."""

    def images(**more: str) -> set[str]:
        return {container(stage, AcceleratorType=kind, **more)["image"].rpartition("/")[2] for stage in COMPUTES}

    native = instances()[kind].accelerator == "neuron"
    assert images(ImageTag="0.1.0") == {f"neuronrepository:0.1.0{'-torchneuron' if native else ''}"}
    beside = container("infer", "millrace-inferentia", AcceleratorType=kind, InferType="inf2.xlarge", ImageTag="0.1.0")
    assert beside["image"].endswith("/neuronrepository:0.1.0")
    assert images(AcceleratorImage="registry/own:1") == {"own:1"}


def test_other_machines_have_definitions_of_their_own() -> None:
    more = definitions(InferType="inf2.xlarge", GpuType="p4d.24xlarge").keys() - definitions().keys()
    assert more == {"millrace-inferentia-infer", *(f"millrace-gpu-{stage}" for stage in COMPUTES)}
    queues = made("AWS::Batch::JobQueue", InferType="inf2.xlarge", GpuType="p4d.24xlarge")
    names = {one["JobQueueName"]: one["ComputeEnvironmentOrder"][0]["ComputeEnvironment"] for one in queues.values()}
    assert (names["millrace-infer"], names["millrace-gpu"]) == ("InferEnvironment", "GpuEnvironment")


@pytest.mark.parametrize("kind", INFER)
def test_infer_goes_to_spot_first_where_the_stack_says_so(kind: str) -> None:
    """And nothing else does: Batch refuses jobs of several nodes on Spot."""

    def markets(**parameters: str) -> dict[str, list[str]]:
        environments = made("AWS::Batch::ComputeEnvironment", **parameters)
        queues = made("AWS::Batch::JobQueue", **parameters).values()
        return {
            queue["JobQueueName"]: [
                environments[each["ComputeEnvironment"]]["ComputeResources"]["Type"]
                for each in sorted(queue["ComputeEnvironmentOrder"], key=lambda each: each["Order"])
            ]
            for queue in queues
        }

    on_demand, both = {"InferType": kind}, {"InferType": kind, **SPOT}
    assert markets(**both) == markets(**on_demand) | {"millrace-infer": ["SPOT", "EC2"]}
    assert markets(**on_demand)["millrace-infer"] == ["EC2"]
    assert markets(**SPOT) == markets(), "without InferType there is nothing to buy"
    environments = made("AWS::Batch::ComputeEnvironment", **both)
    spot, other = (environments[name]["ComputeResources"] for name in ("InferSpotEnvironment", "InferEnvironment"))
    assert spot["AllocationStrategy"] == "SPOT_PRICE_CAPACITY_OPTIMIZED"
    assert {key for key in spot if spot[key] != other[key]} == {"Type", "AllocationStrategy", "Tags"}
    assert {"onStatusReason": "Host EC2*", "action": "RETRY"} in evaluate_on_exit()


def test_the_default_limit_of_an_attempt_is_the_configured_one() -> None:
    seconds = load_config().batch.attempt_seconds
    for name, definition in definitions(InferType="inf2.xlarge", GpuType="p4d.24xlarge").items():
        if name == "millrace-reap":  # no attempt of a stage
            continue
        assert definition["timeout"] == {"attemptDurationSeconds": seconds}


def test_an_update_of_the_stack_ends_no_job_before_its_own_limit() -> None:
    environments = [
        one for one in template()["Resources"].values() if one.get("Type", "").endswith("ComputeEnvironment")
    ]
    limits = [one["Properties"]["UpdatePolicy"] for one in environments if "UpdatePolicy" in one["Properties"]]
    assert len(limits) >= 2
    assert min(one["JobExecutionTimeoutMinutes"] for one in limits) * 60 >= PARAMETERS["AttemptSeconds"]["Default"]


@pytest.mark.parametrize("stack", STACKS, ids=written)
def test_every_container_logs_passes_signals_on_and_knows_its_region(stack: dict[str, str]) -> None:
    """Nothing else says the region in a container: without it S3's requests are signed for another one first."""
    for name, one in definitions(**stack).items():
        nodes = one.get("nodeProperties", {}).get("nodeRangeProperties", ())
        for found in [one["containerProperties"]] if not nodes else [each["container"] for each in nodes]:
            assert found["logConfiguration"]["options"]["awslogs-group"] == "LogGroup", name
            assert found["linuxParameters"]["initProcessEnabled"] is True
            if name != "millrace-reap":  # the control image, which has one user
                assert found["user"] == PARAMETERS["WorkerUser"]["Default"]
            assert {"name": "AWS_DEFAULT_REGION", "value": REGION} in found["environment"]
            assert not found.get("privileged")


def machine_of(stack: dict[str, str]) -> tuple[str, dict[str, Any]]:
    """The kind of machine that a stack is about, and the containers that run on it, by stage."""
    if "GpuType" in stack:
        return stack["GpuType"], {stage: container(stage, "millrace-gpu", **stack) for stage in COMPUTES}
    if "InferType" in stack:
        return stack["InferType"], {"infer": container("infer", "millrace-inferentia", **stack)}
    kind = str(stack.get("AcceleratorType", PARAMETERS["AcceleratorType"]["Default"]))
    return kind, {stage: container(stage, **stack) for stage in COMPUTES}


@pytest.mark.shows("machines")
@pytest.mark.parametrize("stack", STACKS, ids=written)
def test_a_job_fits_its_machine_and_leaves_no_room_for_a_second(stack: dict[str, str]) -> None:
    kind, containers = machine_of(stack)
    vcpus, mib = SIZES[kind]
    for stage, found in containers.items():
        needs = {one["type"]: int(one["value"]) for one in found["resourceRequirements"]}
        assert vcpus / 2 < needs["VCPU"] <= vcpus, stage
        assert mib / 2 < needs["MEMORY"] < mib * MOST_OF_A_MACHINE
        assert found["linuxParameters"]["sharedMemorySize"] < needs["MEMORY"]
        assert found.get("instanceType") == (kind if stage in ON_NODES else None)
        assert ("GPU" in needs) == ("GpuType" in stack)
        assert {"name": "memlock", "softLimit": -1, "hardLimit": -1} in found["ulimits"]


@pytest.mark.shows("machines")
@pytest.mark.parametrize(
    "stack",
    [
        {parameter: kind}
        for parameter, kinds in {"AcceleratorType": ACCELERATORS, "InferType": INFER}.items()
        for kind in kinds
    ],
    ids=written,
)
def test_a_container_has_all_devices_of_its_machine(stack: dict[str, str]) -> None:
    """EFA devices have no permissions of their own: Batch takes read, write and mknod together, or none at all."""
    kind, containers = machine_of(stack)
    machine = load_config().health.machines[kind]
    for stage, found in containers.items():
        devices = {one["hostPath"]: one.get("permissions") for one in found["linuxParameters"]["devices"]}
        wanted: dict[str, Any] = {f"/dev/neuron{number}": ["READ", "WRITE"] for number in range(machine.devices)}
        if stage in ON_NODES:
            wanted |= {f"/dev/infiniband/uverbs{number}": None for number in range(machine.efa_interfaces)}
        assert devices == wanted, stage


@pytest.mark.shows("machines")
@pytest.mark.parametrize("kind", ACCELERATORS)
def test_there_is_one_efa_interface_per_network_card(kind: str) -> None:
    data = made("AWS::EC2::LaunchTemplate", AcceleratorType=kind)["AcceleratorTemplate"]["LaunchTemplateData"]
    interfaces = data.get("NetworkInterfaces", [])
    places = [(one["NetworkCardIndex"], one["DeviceIndex"]) for one in interfaces]
    assert places == [(card, int(card > 0)) for card in range(load_config().health.machines[kind].efa_interfaces)]
    assert all(one["InterfaceType"] == "efa" and not one.get("AssociatePublicIpAddress") for one in interfaces)


@pytest.mark.parametrize("stage", ON_NODES)
def test_multinode_definitions_are_for_any_number_of_nodes(stage: str) -> None:
    nodes = definitions()[f"millrace-{stage}"]["nodeProperties"]
    assert (nodes["numNodes"], nodes["mainNode"]) == (1, 0)
    assert [one["targetNodes"] for one in nodes["nodeRangeProperties"]] == ["0:"]


@pytest.mark.parametrize("kind", ACCELERATORS)
def test_multi_node_jobs_meet_batchs_conditions(kind: str) -> None:
    """Managed, on demand, in one subnet, each machine reachable from the others; with EFA, in one placement group."""
    accelerator = made("AWS::Batch::ComputeEnvironment", AcceleratorType=kind)["AcceleratorEnvironment"]
    compute = accelerator["ComputeResources"]
    assert (accelerator["Type"], compute["Type"], compute["MinvCpus"]) == ("MANAGED", "EC2", 0)
    assert len(compute["Subnets"]) == 1
    efa = load_config().health.machines[kind].efa_interfaces
    assert compute.get("PlacementGroup") == ("PlacementGroup" if efa else None)
    assert made("AWS::EC2::PlacementGroup")["PlacementGroup"] == {"Strategy": "cluster"}
    (group,) = compute["SecurityGroupIds"]
    incoming = made("AWS::EC2::SecurityGroupIngress")["NodesHearNodes"]
    outgoing = made("AWS::EC2::SecurityGroupEgress")["NodesSpeakToNodes"]
    assert (incoming["GroupId"], incoming["SourceSecurityGroupId"], incoming["IpProtocol"]) == (group, group, "-1")
    assert (outgoing["GroupId"], outgoing["DestinationSecurityGroupId"], outgoing["IpProtocol"]) == (group, group, "-1")


@pytest.mark.parametrize("kind", ACCELERATORS)
@pytest.mark.parametrize("nodes", PARAMETERS["AcceleratorNodes"]["AllowedValues"])
def test_a_stack_has_room_for_its_number_of_machines(kind: str, nodes: str) -> None:
    found = made("AWS::Batch::ComputeEnvironment", AcceleratorType=kind, AcceleratorNodes=nodes)
    assert int(found["AcceleratorEnvironment"]["ComputeResources"]["MaxvCpus"]) == SIZES[kind][0] * int(nodes)


def test_a_reservation_is_used_where_one_is_named() -> None:
    def target(**parameters: str) -> Any:
        data = made("AWS::EC2::LaunchTemplate", **parameters)["AcceleratorTemplate"]["LaunchTemplateData"]
        return data.get("CapacityReservationSpecification")

    def market(kind: str, **parameters: str) -> Any:
        data = made("AWS::EC2::LaunchTemplate", AcceleratorType=kind, **parameters)["AcceleratorTemplate"]
        return data["LaunchTemplateData"].get("InstanceMarketOptions")

    assert target() is None
    reservation = {"CapacityReservationId": RESERVED["CapacityReservation"]}
    assert target(**RESERVED) == {"CapacityReservationTarget": reservation}
    for kind in ACCELERATORS:
        only = instances()[kind].capacity_block == "only"
        assert market(kind) is None
        assert market(kind, **RESERVED) == ({"MarketType": "capacity-block"} if only else None), kind
        found = made("AWS::Batch::ComputeEnvironment", AcceleratorType=kind, **RESERVED)["AcceleratorEnvironment"]
        grouped = instances()[kind].efa_cards and not only
        assert ("PlacementGroup" in found["ComputeResources"]) == bool(grouped), "a block has a place of its own"


@pytest.mark.parametrize(
    ("preset", "nodes"),
    [("trainium", 1), ("trainium", 4), ("trainium-m5", 1), ("trainium-stochastic", 1), ("trainium-small", 1)],
)
def test_the_settings_for_trainium_are_for_these_machines(preset: str, nodes: int) -> None:
    """Two NeuronCores on each device, a process for each, and room for as many machines as are asked for."""
    config = load_config(ROOT / f"configs/{preset}.yaml")
    each = config.batch.processes_per_node
    assert config.train.sequences == 48 * each, "of each core the same batch, and the same graph for every span"
    workers = [
        f"train.workers={each * nodes}",
        f"infer.workers={each * nodes}",
        f"train.batch_rows={64 * each * nodes}",
        f"train.sequences={48 * each * nodes}",
    ]
    config = load_config(ROOT / f"configs/{preset}.yaml", workers)
    assert {compute_of(config, work) for work in WORKS} == {"batch"}
    machine = config.health.machine
    assert machine in ACCELERATORS
    assert machine.startswith(f"{config.compiler.target}.")
    assert each == 2 * config.health.machines[machine].devices
    assert nodes <= int(PARAMETERS["AcceleratorNodes"]["Default"])
