import pytest

from tasks.foundation.errors import ConfigError
from tasks.worker.launch.container_position import FIRST_PORT, PORTS_PER_JOB, SLOTS, ContainerPosition

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


def test_one_container_alone_is_the_main_of_one_node():
    assert ContainerPosition.from_environment(ALONE) == ContainerPosition("4f2a-77", 1, 0, 1, "127.0.0.1", None)
    assert ContainerPosition.from_environment(ALONE).is_main


def test_a_child_node_finds_the_main_one_where_batch_says():
    position = ContainerPosition.from_environment(CHILD)
    assert position == ContainerPosition("4f2a-77", 3, 2, 4, "10.0.0.7", None)
    assert not position.is_main


def test_the_main_node_gets_no_address_and_finds_its_own():
    position = ContainerPosition.from_environment(MAIN)
    assert position.is_main
    assert position.main_address.count(".") == 3


def test_each_child_of_an_array_is_the_main_of_one_node():
    position = ContainerPosition.from_environment(ARRAY)
    assert (position.job, position.array_index, position.nodes, position.index, position.is_main) == (
        "4f2a-77",
        5,
        1,
        5,
        True,
    )


def test_the_nodes_of_a_job_agree_on_its_ports():
    main, child = ContainerPosition.from_environment(MAIN), ContainerPosition.from_environment(CHILD)
    assert (main.torch_port, main.link_port) == (child.torch_port, child.link_port)


def ports(**changes) -> set[int]:
    """All that the job takes: torch's, the next one for torchrun below a tool, and the launchers'."""
    position = ContainerPosition.from_environment(ALONE | changes)
    return {position.torch_port, position.torch_port + 1, position.link_port}


def test_jobs_and_tries_and_children_of_arrays_have_ports_of_their_own():
    others = [
        {"AWS_BATCH_JOB_ID": "4f2a-78"},
        {"AWS_BATCH_JOB_ATTEMPT": "2"},
        *({"AWS_BATCH_JOB_ARRAY_INDEX": str(index)} for index in range(1, 50)),
    ]
    taken = [ports(), *(ports(**other) for other in others)]
    assert len(set().union(*taken)) == 3 * len(taken)


def test_ports_are_below_those_that_the_kernel_gives_out():
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
def test_a_missing_or_wrong_variable_is_one_sentence(environment, change, message):
    with pytest.raises(ConfigError, match=message) as caught:
        ContainerPosition.from_environment(environment | change)
    assert "\n" not in str(caught.value)
