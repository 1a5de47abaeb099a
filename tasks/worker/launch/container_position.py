"""The position of this container in its job, from AWS Batch's `AWS_BATCH_*` variables."""

from __future__ import annotations

import fcntl
import hashlib
import re
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from tasks.contracts.jobs import JobSpec
from tasks.foundation.errors import ConfigError

# Below Linux's ephemeral ports (32768 and up). A job takes four in a row: torch's, one for torchrun inside an
# ahead-of-time compiler, the launchers' own, and a free one.
FIRST_PORT, PORTS_PER_JOB, SLOTS = 20_000, 4, 2_500
_LINK = 2

_ID, _TRY, _ARRAY_INDEX = "AWS_BATCH_JOB_ID", "AWS_BATCH_JOB_ATTEMPT", "AWS_BATCH_JOB_ARRAY_INDEX"
_NODE, _NODES, _MAIN = "AWS_BATCH_JOB_NODE_INDEX", "AWS_BATCH_JOB_NUM_NODES", "AWS_BATCH_JOB_MAIN_NODE_INDEX"
_MAIN_ADDRESS = "AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS"
_GET_ADDRESS = 0x8915  # SIOCGIFADDR of Linux: the IPv4 address of an interface


@dataclass(frozen=True)
class ContainerPosition:
    """One container of a job: one of its nodes, one child of an array, or the only container."""

    job: str  # id of the whole job, shared by all its nodes, children and tries
    try_number: int  # Batch's number of this try, from 1
    node: int  # 0 is the main node, whose exit code is the job's
    nodes: int
    main_address: str
    array_index: int | None  # None: not part of an array

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ContainerPosition:
        """Read the variables. Raises ConfigError for a missing variable or an invalid number."""
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
        """True if this container's exit code is the exit code of the job or array child."""
        return self.node == 0

    @property
    def index(self) -> int:
        """The number of this container in its job, as node or array child."""
        return self.array_index or self.node

    @property
    def torch_port(self) -> int:
        """The workers' rendezvous port on the main node; differs for tries and array children on one machine."""
        hashed = int(hashlib.sha256(f"{self.job}/{self.try_number}".encode()).hexdigest()[:8], 16)
        return FIRST_PORT + (hashed + (self.array_index or 0)) % SLOTS * PORTS_PER_JOB

    @property
    def link_port(self) -> int:
        """The port on the main node for the launchers of the child nodes."""
        return self.torch_port + _LINK


def processes_per_node(spec: JobSpec) -> int:
    """Return the number of workers in one container."""
    return min(spec.config.batch.processes_of(spec.stage.value), spec.workers)


def check_position(position: ContainerPosition, spec: JobSpec) -> None:
    """Raise ConfigError unless the job has the number of containers that the spec's workers need."""
    wanted = spec.workers // processes_per_node(spec)
    if position.array_index is not None:
        if position.array_index >= wanted:
            raise ConfigError(
                f"child {position.array_index} of array {position.job} has no work: the spec is for {wanted}"
            )
    elif position.nodes != wanted:
        raise ConfigError(
            f"job {position.job} has {position.nodes} nodes, but {spec.workers} workers with "
            f"batch.processes_per_node {processes_per_node(spec)} need {wanted}"
        )


def _text(environment: Mapping[str, str], name: str) -> str:
    if not (value := environment.get(name)):
        raise ConfigError(f"{name} is not set; this command is for AWS Batch's containers, which have it set")
    return value


def _number(environment: Mapping[str, str], name: str, least: int = 0) -> int:
    value = _text(environment, name)
    if not value.isdecimal() or int(value) < least:
        raise ConfigError(f"{name} is {value!r}, but must be a whole number of at least {least}")
    return int(value)


def network_interface(position: ContainerPosition) -> str | None:
    """Return the network interface towards the main node, e.g. `eth0`; None if unknown."""
    address = _address_towards(position.main_address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            try:
                reply = fcntl.ioctl(probe, _GET_ADDRESS, struct.pack("256s", name.encode()))
            except OSError:  # the interface has no address
                continue
            if socket.inet_ntoa(reply[20:24]) == address:
                return name
    return None


def _own_address(nodes: int) -> str:
    """Return this machine's address for other machines; Batch gives it to the child nodes only."""
    return "127.0.0.1" if nodes == 1 else _address_towards("192.0.2.1")


def _address_towards(other: str) -> str:
    """Return this machine's address on the route to another; loopback without a route."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((other, 9))  # sends nothing; the kernel only chooses the route
        except OSError:  # no route to other machines: all nodes are on this one
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address
