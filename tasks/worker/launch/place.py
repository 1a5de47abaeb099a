"""Where AWS Batch put this container among those of its job, as the `AWS_BATCH_*` variables say."""

from __future__ import annotations

import hashlib
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.contracts import JobSpec
from tasks.errors import ConfigError

# Below the ports that Linux gives out by itself (32768 and up). A job takes four beside each other: torch's, the next
# for torchrun below a compile-ahead tool, the launchers' own, and one that stays free.
FIRST_PORT, PORTS_PER_JOB, SLOTS = 20_000, 4, 2_500
_TETHER = 2

_ID, _TRY, _ARRAY_INDEX = "AWS_BATCH_JOB_ID", "AWS_BATCH_JOB_ATTEMPT", "AWS_BATCH_JOB_ARRAY_INDEX"
_NODE, _NODES, _MAIN = "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_MAIN_NODE_INDEX"
_MAIN_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"


@dataclass(frozen=True)
class Place:
    """One container of a job: one of its nodes, or one child of an array, or all there is."""

    job: str  # id of the whole job, the same for all its nodes, children and tries
    try_number: int  # Batch's count of this job's tries, from 1
    node: int  # 0 is the main node, which alone decides how the job ends
    nodes: int
    main_address: str
    array_index: int | None  # None: not part of an array

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Place:
        """Raises ConfigError for a variable that is missing or no number."""
        job = re.split("[#:]", _text(environment, _ID))[0]
        alone = _NODES not in environment
        nodes = 1 if alone else _number(environment, _NODES, least=1)
        node = 0 if alone else _number(environment, _NODE)
        if node >= nodes:
            raise ConfigError(f"{_NODE} is {node}, but {_NODES} is {nodes}")
        if not alone and _number(environment, _MAIN):
            raise ConfigError(f"{_MAIN} is {environment[_MAIN]}: the job definition must make node 0 the main node")
        return cls(
            job=job,
            try_number=_number(environment, _TRY, least=1),
            node=node,
            nodes=nodes,
            main_address=_text(environment, _MAIN_ADDRESS) if node else _own_address(nodes),
            array_index=_number(environment, _ARRAY_INDEX) if _ARRAY_INDEX in environment else None,
        )

    @property
    def is_main(self) -> bool:
        """Whether this container's exit code is what Batch judges by."""
        return self.node == 0

    @property
    def index(self) -> int:
        """The number of this container among all of the job, whichever kind it is."""
        return self.array_index or self.node

    @property
    def torch_port(self) -> int:
        """Where the workers meet, on the main node. Tries and children of an array that share a machine differ."""
        hashed = int(hashlib.sha256(f"{self.job}/{self.try_number}".encode()).hexdigest()[:8], 16)
        return FIRST_PORT + (hashed + (self.array_index or 0)) % SLOTS * PORTS_PER_JOB

    @property
    def tether_port(self) -> int:
        """Where the launchers of the other nodes find that of the main one."""
        return self.torch_port + _TETHER


def processes_per_node(spec: JobSpec) -> int:
    """Workers in one container."""
    return min(spec.config.batch.processes_per_node, spec.workers)


def check_place(place: Place, spec: JobSpec) -> None:
    """Raises ConfigError where the job does not have as many containers as the spec has workers for."""
    wanted = spec.workers // processes_per_node(spec)
    if place.array_index is not None:
        if place.array_index >= wanted:
            raise ConfigError(f"child {place.array_index} of array {place.job} has no work: the spec is for {wanted}")
    elif place.nodes != wanted:
        raise ConfigError(
            f"job {place.job} has {place.nodes} nodes, but {spec.workers} workers with "
            f"batch.processes_per_node {spec.config.batch.processes_per_node} need {wanted}"
        )


def _text(environment: Mapping[str, str], name: str) -> str:
    if not (value := environment.get(name)):
        raise ConfigError(f"{name} is not set; this command is for AWS Batch's containers, which have it")
    return value


def _number(environment: Mapping[str, str], name: str, least: int = 0) -> int:
    value = _text(environment, name)
    if not value.isdecimal() or int(value) < least:
        raise ConfigError(f"{name} is {value!r}, which is no whole number from {least}")
    return int(value)


def _own_address(nodes: int) -> str:
    """The address under which other machines know this one: Batch tells it to the others only."""
    if nodes == 1:
        return "127.0.0.1"
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing; the kernel only chooses the way out
        except OSError:  # no way out of this machine: all nodes are on it
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address
