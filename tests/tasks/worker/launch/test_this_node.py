"""The position of a container in its job, and the attempt that it claims."""

import dataclasses

import pytest

from tasks.contracts.jobs import JobSpec
from tasks.foundation.errors import CancelledError, ConfigError, StoreError
from tasks.worker.launch.this_node import (
    FIRST_PORT,
    PORTS_PER_JOB,
    SLOTS,
    ContainerPosition,
    claim_attempt,
    network_interface,
    spec_of_try,
    torchrun_environment,
    write_spec,
)
from tasks.worker.process.threads import BINDING
from tests.support.fakes.stand_ins import health_spec

ALONE = {"AWS_BATCH_JOB_ID": "4f2a-77", "AWS_BATCH_JOB_ATTEMPT": "1"}
CHILD = {
    "AWS_BATCH_JOB_ID": "4f2a-77#2",
    "AWS_BATCH_JOB_ATTEMPT": "3",
    "AWS_BATCH_JOB_NODE_INDEX": "2",
    "AWS_BATCH_JOB_NUM_NODES": "4",
    "AWS_BATCH_JOB_MAIN_NODE_INDEX": "0",
    "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "10.0.0.7",
}
MAIN = {key: value for key, value in CHILD.items() if not key.endswith("ADDRESS")} | {
    "AWS_BATCH_JOB_ID": "4f2a-77#0",
    "AWS_BATCH_JOB_NODE_INDEX": "0",
}
ARRAY = {**ALONE, "AWS_BATCH_JOB_ID": "4f2a-77:5", "AWS_BATCH_JOB_ARRAY_INDEX": "5"}


@pytest.mark.parametrize(
    ("environment", "expected", "main", "index"),
    [
        (ALONE, ContainerPosition("4f2a-77", 1, 0, 1, "127.0.0.1", None), True, 0),
        (CHILD, ContainerPosition("4f2a-77", 3, 2, 4, "10.0.0.7", None), False, 2),
        (ARRAY, ContainerPosition("4f2a-77", 1, 0, 1, "127.0.0.1", 5), True, 5),
    ],
    ids=["a single container", "a child node", "a child of an array"],
)
def test_a_container_reads_its_position_from_the_environment(environment, expected, main, index):
    position = ContainerPosition.from_environment(environment)
    assert position == expected
    assert (position.is_main, position.index) == (main, index)


def test_the_main_node_finds_its_own_address():
    position = ContainerPosition.from_environment(MAIN)
    assert position.is_main
    assert position.main_address.count(".") == 3


def test_the_interface_towards_the_main_node_is_named_and_gloo_is_given_it(store):
    child = ContainerPosition.from_environment(CHILD | {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "127.0.0.1"})
    assert network_interface(child) == "lo"
    spec = health_spec(store, 2)
    assert torchrun_environment(child, spec, "i-1", 0.0)["GLOO_SOCKET_IFNAME"] == "lo"
    alone = ContainerPosition.from_environment(ALONE)
    assert "GLOO_SOCKET_IFNAME" not in torchrun_environment(alone, spec, "i-1", 0.0)


def test_torchrun_is_bound_to_no_core(store, monkeypatch):
    """Its workers would inherit the core, and so would the compilers that they start."""
    for name in BINDING:
        monkeypatch.setenv(name, "as the image says")
    environment = torchrun_environment(ContainerPosition.from_environment(ALONE), health_spec(store), "i-1", 0.0)
    assert not environment.keys() & set(BINDING)


def test_the_nodes_of_a_job_have_the_same_ports():
    main, child = ContainerPosition.from_environment(MAIN), ContainerPosition.from_environment(CHILD)
    assert (main.torch_port, main.link_port) == (child.torch_port, child.link_port)


def ports(**changes) -> set[int]:
    """All ports of the job: torch's, the next one for torchrun, and the launchers'."""
    position = ContainerPosition.from_environment(ALONE | changes)
    return {position.torch_port, position.torch_port + 1, position.link_port}


def test_each_job_try_and_child_has_its_own_ports():
    others = [
        {"AWS_BATCH_JOB_ID": "4f2a-78"},
        {"AWS_BATCH_JOB_ATTEMPT": "2"},
        *({"AWS_BATCH_JOB_ARRAY_INDEX": str(index)} for index in range(1, 50)),
    ]
    taken = [ports(), *(ports(**other) for other in others)]
    assert len(set().union(*taken)) == 3 * len(taken)


def test_ports_are_below_the_kernels_range():
    assert FIRST_PORT + SLOTS * PORTS_PER_JOB <= 32_768
    for number in range(500):
        assert all(FIRST_PORT <= port < 30_000 for port in ports(AWS_BATCH_JOB_ID=f"job-{number}"))


@pytest.mark.parametrize(
    ("environment", "change", "message"),
    [
        (ALONE, {"AWS_BATCH_JOB_ID": ""}, "AWS_BATCH_JOB_ID is not set"),
        (ALONE, {"AWS_BATCH_JOB_ATTEMPT": ""}, "AWS_BATCH_JOB_ATTEMPT is not set"),
        (ALONE, {"AWS_BATCH_JOB_ATTEMPT": "0"}, "AWS_BATCH_JOB_ATTEMPT is '0'"),
        (ARRAY, {"AWS_BATCH_JOB_ARRAY_INDEX": "five"}, "AWS_BATCH_JOB_ARRAY_INDEX is 'five'"),
        (CHILD, {"AWS_BATCH_JOB_NODE_INDEX": ""}, "AWS_BATCH_JOB_NODE_INDEX is not set"),
        (CHILD, {"AWS_BATCH_JOB_MAIN_NODE_INDEX": ""}, "AWS_BATCH_JOB_MAIN_NODE_INDEX is not set"),
        (CHILD, {"AWS_BATCH_JOB_MAIN_NODE_INDEX": "1"}, "must make node 0 the main node"),
        (CHILD, {"AWS_BATCH_JOB_NODE_INDEX": "4"}, "AWS_BATCH_JOB_NODE_INDEX is 4, but AWS_BATCH_JOB_NUM_NODES is 4"),
        (CHILD, {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": ""}, "PRIVATE_IPV4_ADDRESS is not set"),
    ],
)
def test_a_missing_or_wrong_variable_is_named_in_one_sentence(environment, change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        ContainerPosition.from_environment(environment | change)
    assert "\n" not in str(caught.value)


FIRST = ContainerPosition("job-1", 1, 0, 1, "127.0.0.1", None)


def test_an_attempt_belongs_to_its_first_job_with_all_tries_and_children(store):
    spec = health_spec(store)
    claim_attempt(store, spec, FIRST)
    for same in ({"try_number": 2}, {"array_index": 3}):
        position = dataclasses.replace(FIRST, **same)
        claim_attempt(store, spec_of_try(spec, position), position)
    with pytest.raises(CancelledError, match=r"job job-1; job job-2"):
        claim_attempt(store, spec, dataclasses.replace(FIRST, job="job-2"))


@pytest.mark.parametrize("record", [b"", b"[]", b"{}"])
def test_a_record_without_an_owner_is_refused_with_the_way_out(store, record):
    spec = health_spec(store)
    store.write("runs/run/health/attempt-1/owner.json", record)
    with pytest.raises(StoreError, match=r"owner.json .* delete it"):
        claim_attempt(store, spec, FIRST)


def test_later_tries_are_counted_from_the_submitted_attempt(store):
    spec = health_spec(store).model_copy(update={"attempt": 4, "submitted_as": 4})
    tries = [spec_of_try(spec, dataclasses.replace(FIRST, try_number=number)) for number in (1, 2, 3)]
    assert [(one.attempt, one.submitted_as, one.job_prefix) for one in tries] == [
        (4, 4, "runs/run/health/attempt-4"),
        (5, 4, "runs/run/health/attempt-4"),
        (6, 4, "runs/run/health/attempt-4"),
    ]


def test_the_spec_of_a_later_try_is_written_once(store):
    first = health_spec(store)
    second = spec_of_try(first, dataclasses.replace(FIRST, try_number=2))
    for _ in range(2):  # as two children of an array do
        write_spec(store, second)
    written = JobSpec.model_validate_json(store.read("runs/run/health/attempt-2/spec.json"))
    assert written == second
    write_spec(store, first)
    assert JobSpec.model_validate_json(store.read("runs/run/health/attempt-1/spec.json")) == first
