"""The faults that tests ask for: calls that fail, jobs that wait, hide, or lose their host.

`job` is a job's id or its name, which may be a glob. `index` is a node, or the place in an array.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass, field

from tests.emulator.engine.aws import Document, ServiceError
from tests.emulator.engine.records import Container, Job

_REFUSALS = {
    "throttle": ("TooManyRequestsException", 429, "Too Many Requests"),
    "fail": ("ServerException", 500, "Internal server error"),
    "deny": ("AccessDeniedException", 403, "User is not authorized to perform this operation"),
    "refuse_credentials": ("UnrecognizedClientException", 403, "The security token in the request is invalid."),
}


@dataclass
class CallFault:
    """The next `times` calls of an operation (None: all from now on) are refused, or their reply is lost."""

    kind: str
    operation: str = "*"
    times: int | None = 1


@dataclass
class Hold:
    """Jobs that stay RUNNABLE."""

    job: str = "*"
    queue: str = "*"


@dataclass
class Hiding:
    """Jobs submitted from now on that are not shown for so long."""

    seconds: float
    job: str = "*"


@dataclass
class Strike:
    """Ends `times` containers: once started (pull), or `after` seconds, or when the log says `log`."""

    kind: str  # host, memory, pull
    job: str = "*"
    index: int | None = None
    log: str | None = None
    after: float = 0.0
    times: int = 1

    def aims_at(self, job: Job, container: Container) -> bool:
        index = container.node if job.definition.multinode else job.index
        return self.times > 0 and matches(job, self.job) and self.index in (None, index)


@dataclass
class Delays:
    """Seconds that the real service takes; here none, unless a test wants it to."""

    scheduling: float = 0.0  # RUNNABLE
    starting: float = 0.0  # STARTING, for each node
    joining: float = 0.0  # from the start of the main node to that of the last one; the others start in between
    timeout_scale: float = 1.0  # how long a second of attemptDurationSeconds lasts


@dataclass
class Faults:
    calls: list[CallFault] = field(default_factory=list)
    holds: list[Hold] = field(default_factory=list)
    hidings: list[Hiding] = field(default_factory=list)
    strikes: list[Strike] = field(default_factory=list)
    delays: Delays = field(default_factory=Delays)

    def forget(self) -> None:
        for known in (self.calls, self.holds, self.hidings, self.strikes):
            known.clear()
        self.delays = Delays()

    def take_call(self, operation: str) -> CallFault | None:
        """The first fault meant for this call, used up by it."""
        for fault in self.calls:
            if fault.operation in ("*", operation) and fault.times != 0:
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None

    def take_strike(self, kind: str, job: Job, container: Container) -> Strike | None:
        """The first one of a kind meant for this container, used up by it."""
        for strike in self.strikes:
            if strike.kind == kind and strike.aims_at(job, container):
                strike.times -= 1
                return strike
        return None

    def held(self, job: Job) -> bool:
        return any(matches(job, one.job) and fnmatch.fnmatchcase(job.queue.name, one.queue) for one in self.holds)

    def hidden_seconds(self, job: Job) -> float:
        return max((one.seconds for one in self.hidings if matches(job, one.job)), default=0.0)


def refusal(fault: CallFault, of_logs: bool) -> ServiceError:
    """CloudWatch Logs has its own names for the first two."""
    code, status, message = _REFUSALS[fault.kind]
    if of_logs and fault.kind == "throttle":
        return ServiceError("Rate exceeded", "ThrottlingException", 400)
    if of_logs and fault.kind == "fail":
        return ServiceError("The service is unavailable.", "ServiceUnavailableException", 503)
    return ServiceError(message, code, status)


def matches(job: Job, wanted: str) -> bool:
    return wanted in (job.id, job.base_id) or fnmatch.fnmatchcase(job.name, wanted)


def parse(document: Document) -> CallFault | Hold | Hiding | Strike:
    """Raises ServiceError: there is no such fault."""
    kind = document.get("kind", "")
    rest = {key: value for key, value in document.items() if key != "kind"}
    try:
        if kind in _REFUSALS or kind == "lose_reply":
            return CallFault(kind, **rest)
        if kind in ("host", "memory", "pull"):
            return Strike(kind, **rest)
        return {"hold": Hold, "hide": Hiding}[kind](**rest)
    except (KeyError, TypeError) as error:
        raise ServiceError(f"there is no such fault: {document} ({error})", "BadFault") from None
