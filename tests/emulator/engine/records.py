"""What the emulator remembers: queues, definitions, hosts, jobs and their containers.

Plain data. `state_machine.py` changes it, `shapes.py` writes it as AWS does.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from tests.emulator.containers.machines import SIZES
from tests.emulator.containers.processes import Process
from tests.emulator.engine.aws import Document, arn, now_ms
from tests.emulator.engine.logs import Stream

STATES = ("SUBMITTED", "PENDING", "RUNNABLE", "STARTING", "RUNNING", "SUCCEEDED", "FAILED")
OVER = ("SUCCEEDED", "FAILED")


class Settings(NamedTuple):
    """How the emulator is started."""

    grace_seconds: float = 30.0  # from SIGTERM to SIGKILL
    slots: int = 64  # containers at once
    users: bool = False  # whether containers run as the user that their definition names
    whole_machine: bool = False  # whether containers may run on every core of this machine, not on one
    image: dict[str, str] = {}  # noqa: RUF012  variables that the images have in addition


@dataclass
class ComputeEnvironment:
    """Instances of one type, as many as `maxvCpus` lets it have."""

    name: str
    request: Document

    @property
    def machine(self) -> str:
        types: list[str] = self.request["computeResources"]["instanceTypes"]
        return types[0]

    @property
    def most(self) -> int:
        vcpus: int = self.request["computeResources"]["maxvCpus"]
        return vcpus // SIZES[self.machine][0]


@dataclass
class Queue:
    name: str
    request: Document
    environments: list[ComputeEnvironment]

    @property
    def state(self) -> str:
        return self.request.get("state", "ENABLED")

    @property
    def arn(self) -> str:
        return arn("job-queue", self.name)

    def patience_seconds(self, reason: str) -> float:
        """How long a job may be RUNNABLE for a reason before the queue cancels it."""
        actions = self.request.get("jobStateTimeLimitActions", [])
        return min((one["maxTimeSeconds"] for one in actions if reason.startswith(one["reason"])), default=math.inf)

    @property
    def policy(self) -> str | None:
        """The scheduling policy of a fair-share queue; None: first in, first out."""
        return self.request.get("schedulingPolicyArn")


@dataclass
class Definition:
    name: str
    revision: int
    request: Document

    @property
    def arn(self) -> str:
        return arn("job-definition", f"{self.name}:{self.revision}")

    @property
    def multinode(self) -> bool:
        return self.request["type"] == "multinode"

    @property
    def each_node(self) -> Document:
        """What says `containerProperties`, `container` or `eksProperties` of every node."""
        return self.request["nodeProperties"]["nodeRangeProperties"][0] if self.multinode else self.request

    @property
    def pod(self) -> Document | None:
        """The properties of its pods on Amazon EKS; None: its containers run on Amazon ECS."""
        on_eks = self.each_node.get("eksProperties")
        return on_eks["podProperties"] if on_eks else None


@dataclass(frozen=True, order=True)
class Host:
    """An instance. Its address is an alias of loopback, so that listening on the wrong one fails."""

    number: int
    id: str
    address: str
    instance_arn: str
    environment: str
    machine: str


@dataclass
class Container:
    """One node of one attempt."""

    node: int
    host: Host
    properties: Document
    task_arn: str
    process: Process | None = None
    stream: Stream | None = None
    started_at: int | None = None
    stopped_at: int | None = None
    exit_code: int | None = None
    reason: str | None = None
    status_reason: str | None = None
    host_lost: bool = False
    kill_at: float | None = None  # time.monotonic(), once it was asked to end
    live_from: float | None = None  # seconds since 1970, finer than the milliseconds of Batch
    live_until: float | None = None

    @property
    def over(self) -> bool:
        return self.stopped_at is not None

    @property
    def live(self) -> bool:
        return self.process is not None and not self.over


@dataclass
class Attempt:
    """One try of a job: a container, or as many as it has nodes. Ordered by node."""

    number: int
    containers: list[Container]
    main: Container
    ready_at: float  # time.monotonic() when the next container may start
    ends_at: float | None = None  # time.monotonic() when its time is up
    over: bool = False


class Ending(NamedTuple):
    """Why a job was ended from outside."""

    kind: str  # terminated, cancelled, timeout
    reason: str


@dataclass(eq=False)
class Job:
    """A job, a child of an array, or the parent of one. Parents have children and never run themselves."""

    id: str
    name: str
    queue: Queue
    definition: Definition
    request: Document
    tags: Document
    nodes: int = 1
    main: int = 0
    index: int | None = None
    parent: Job | None = None
    children: list[Job] = field(default_factory=list)
    children_over: int = 0
    status: str = "SUBMITTED"
    status_reason: str | None = None
    created_at: int = field(default_factory=now_ms)
    started_at: int | None = None
    stopped_at: int | None = None
    attempts: list[Attempt] = field(default_factory=list)
    ending: Ending | None = None
    visible_at: float = 0.0  # time.monotonic()

    @property
    def over(self) -> bool:
        return self.status in OVER

    @property
    def base_id(self) -> str:
        return self.id.split(":")[0]

    @property
    def retry(self) -> Document:
        return self.request.get("retryStrategy", {})

    @property
    def timeout(self) -> Document:
        return self.request.get("timeout", {})

    @property
    def attempt(self) -> Attempt | None:
        """The try that is under way."""
        return self.attempts[-1] if self.attempts and not self.attempts[-1].over else None

    def container_id(self, node: int) -> str:
        """As AWS_BATCH_JOB_ID has it."""
        return f"{self.id}#{node}" if self.definition.multinode else self.id
