"""This container's part of its job: its position, its attempt, and its workers as one child process, torchrun.

The position comes from AWS Batch's `AWS_BATCH_*` variables.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from infra.compute.batch.claim import Owner, owner_of
from infra.root_cause import LogTail
from infra.store.base import Conflict, Store
from tasks.contracts.jobs import JobSpec, parse_progress
from tasks.contracts.workspace import OWNER, SPEC
from tasks.foundation.errors import CancelledError, ConfigError, StoreError
from tasks.foundation.records import Record
from tasks.runs.host_records import HOST
from tasks.worker.launch.torchrun import REPORT, AgentReport
from tasks.worker.process.sigterm import RUNNER_PID
from tasks.worker.process.threads import BINDING

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


class StopSignals:
    """Counts SIGTERM and Ctrl-C."""

    def __init__(self) -> None:
        self.count = 0

    def listen(self) -> None:
        """Count from now on instead of ending the process."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._count)

    def _count(self, signum: int, frame: object) -> None:
        self.count += 1


_DRAIN_SECONDS = 2.0  # for the last lines of output, if an orphan of a worker still holds the pipe


class Report(Record):
    """The end of one node's workers. `code` is torchrun's exit code; negative after a signal."""

    code: int
    agent: AgentReport
    tail: tuple[str, ...]

    @property
    def succeeded(self) -> bool:
        return self.code == 0


class Workers:
    """torchrun with its workers. Create it in the main thread: it dies with the thread that created it."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        read_end, write_end = os.pipe()
        self._report_pipe = os.fdopen(read_end, "rb")
        try:
            self._popen = subprocess.Popen(
                command,
                env={**environment, REPORT: str(write_end), RUNNER_PID: str(os.getpid())},
                pass_fds=[write_end],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a signal to the launcher's group is for the launcher alone
            )
        finally:
            os.close(write_end)
        assert self._popen.stdout is not None
        self._tail = LogTail()
        self._relay = threading.Thread(target=_relay, args=(self._popen.stdout, self._tail), daemon=True)
        self._relay.start()
        self._kill_at: float | None = None
        self._report: Report | None = None

    def poll(self) -> Report | None:
        """Return torchrun's report, or None while it runs; kill it if its time to end is over."""
        if self._report is None:
            if self._kill_at is not None and time.monotonic() > self._kill_at:
                self.kill()
            if (code := self._popen.poll()) is not None:
                self._report = self._read_report(code)
        return self._report

    def ask_to_end(self, seconds: float) -> None:
        """Send SIGTERM, and SIGKILL after `seconds`; of several calls the earliest time counts."""
        kill_at = time.monotonic() + seconds
        if self._kill_at is None:
            self._popen.terminate()  # torchrun passes it on to its workers
        self._kill_at = min(kill_at, self._kill_at or kill_at)

    def kill(self) -> None:
        """Send SIGKILL to torchrun and all its descendants: workers have their own sessions."""
        if self._popen.poll() is None:
            below = _descendants(self._popen.pid)
            self._popen.kill()
            for pid in below:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._popen.wait()

    def _read_report(self, code: int) -> Report:
        self._relay.join(_DRAIN_SECONDS)
        with self._report_pipe as pipe:
            content = pipe.read()
        agent = AgentReport.model_validate_json(content) if content else AgentReport()
        return Report(code=code, agent=agent, tail=self._tail.lines)


def torchrun_command(position: ContainerPosition, spec: JobSpec, uri: str) -> list[str]:
    """Return the torchrun command for this node's workers, whose spec is at `uri`."""
    options = [
        f"--nnodes={position.nodes}",
        f"--node-rank={position.node}",
        f"--nproc-per-node={processes_per_node(spec)}",
        f"--master-addr={position.main_address}",
        f"--master-port={position.torch_port}",
        f"--rdzv-id={position.job}",
        "--max-restarts=0",
    ]
    worker = ["-m", "tasks.worker", spec.stage.value, "--spec", uri]
    return [sys.executable, "-m", "tasks.worker.launch.torchrun", *options, *worker]


def torchrun_environment(position: ContainerPosition, spec: JobSpec, host: str, started_at: float) -> dict[str, str]:
    """Return the workers' environment: this process's with the runner's facts; times in seconds since the epoch."""
    environment = {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "MILLRACE_STARTED_AT": repr(started_at),
        # For torchrun; each worker sets its own. A torchrun bound to one core would bind its workers to that core.
        "OMP_NUM_THREADS": "1",
        HOST: host,
    }
    if position.nodes > 1 and (interface := network_interface(position)) is not None:
        # gloo resolves the host's name, which gives loopback if the network has no names for hosts.
        environment.setdefault("GLOO_SOCKET_IFNAME", interface)
    for name in BINDING:
        environment.pop(name, None)
    if position.array_index is not None:
        environment["MILLRACE_ARRAY_INDEX"] = str(position.array_index)
        environment["MILLRACE_ARRAY_SIZE"] = str(spec.workers // processes_per_node(spec))
    return environment


def _relay(stream: IO[bytes], tail: LogTail) -> None:
    """Pass lines on at once, each in one piece, and keep the last ones."""
    with stream:
        for line in stream:
            text = line.decode(errors="replace").rstrip("\n")
            if text and parse_progress(text) is None:
                tail.append(text)
            with contextlib.suppress(OSError):  # nobody reads the output any more, but workers must not block on it
                sys.stdout.buffer.write(line)
                sys.stdout.buffer.flush()


def _descendants(pid: int) -> list[int]:
    """Return all descendants of a process; empty without /proc."""
    children: dict[int, list[int]] = defaultdict(list)
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process ended meanwhile
            children[int(stat.read_text(encoding="utf-8").rpartition(")")[2].split()[1])].append(int(stat.parent.name))
    found, parents = [], [pid]
    while parents:
        below = children[parents.pop()]
        found += below
        parents += below
    return found


def claim_attempt(store: Store, spec: JobSpec, position: ContainerPosition) -> None:
    """Claim the attempt for this job, all its tries and children.

    Raises:
        CancelledError: another job owns the attempt; this job is a second submission.
        StoreError: the owner's record is not readable.
    """
    key = OWNER.key(run=spec.run_key, stage=spec.stage, attempt=spec.submitted_as)
    try:
        store.create(key, Owner(job=position.job).to_json())
        return
    except Conflict:
        pass
    owner = owner_of(store, spec.job_prefix)
    if owner is None:
        raise StoreError(f"{store.uri}/{key} does not name the job that owns the attempt; delete it and try again")
    if owner != position.job:
        raise CancelledError(
            f"{spec.job_prefix} belongs to job {owner}; job {position.job} is a second submission of it and ends"
        )


def spec_of_try(spec: JobSpec, position: ContainerPosition) -> JobSpec:
    """Return the spec for this try: Batch's own retries count up from the submitted attempt."""
    return spec.model_copy(update={"attempt": spec.submitted_as + position.try_number - 1})


def write_spec(store: Store, spec: JobSpec) -> None:
    """Write the spec of a later try for its workers; the first try's spec exists already."""
    if spec.attempt != spec.submitted_as:
        with contextlib.suppress(Conflict):  # another child of the array was first
            store.create(SPEC.of(spec), spec.to_json())
