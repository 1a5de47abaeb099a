"""AWS Batch for tests: the emulator in a process of its own, with faults on request."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import urllib.parse
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from tests.support.cloud.requests import definitions, requests
from tests.support.cloud.template import TEMPLATE, resources

_ROOT = Path(__file__).resolve().parents[3]
STAGES = (
    "validate",
    "health",
    "warmup",
    "train",
    "evaluate",
    "infer",
    "release",
    "import-checkpoint",
    "publish",
    "cpu-infer",
)
CPU_QUEUE, ACCELERATOR_QUEUE = "millrace-cpu", "millrace-accelerator"
_SECONDS = 30.0


class Life(NamedTuple):
    """When one container's process was live: seconds since 1970; `stopped` is None while it still is."""

    name: str
    job: str
    base: str  # the job's id without the place in an array
    node: int
    attempt: int
    host: str
    started: float
    stopped: float | None


class BatchServer:
    """Runs from its making until `stop`, or until this process ends.

    Containers have `image` in their environment in addition to what the image sets, and nothing of this process's. With
    `users` each runs as the user that its definition names, where this process may do that; with `whole_machine` it is
    not bound to one core.

    A `job` in a fault is a job's id or its name, which may be a glob; `index` is a node, or the place in an array.
    """

    def __init__(
        self,
        image: dict[str, str] | None = None,
        *,
        grace_seconds: float = 30.0,
        slots: int = 64,
        users: bool = False,
        whole_machine: bool = False,
    ) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.emulator.engine", "--port", "0", "--while-stdin-open"),
                *("--grace-seconds", str(grace_seconds), "--slots", str(slots), "--image", json.dumps(image or {})),
                *(["--users"] if users else []),
                *(["--whole-machine"] if whole_machine else []),
            ],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the Batch emulator ended with {self._process.wait()} before it served"
        self.url: str = json.loads(line)["url"]
        self.pid = self._process.pid

    def stop(self) -> None:
        """End it, and with it all that its jobs have started."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    def register_all(self, stages: Iterable[str] = STAGES, of: Path = TEMPLATE, /, **parameters: str) -> None:
        """The machines, queues and job definitions of a template, for a stack with these parameters."""
        without_machines = set[str]()
        for name, environment in requests("AWS::Batch::ComputeEnvironment", of, **parameters).items():
            if environment["computeResources"]["type"] == "FARGATE":  # not emulated
                without_machines.add(name)
                continue
            self.request("v1/createcomputeenvironment", environment | {"computeEnvironmentName": name})
        for queue in requests("AWS::Batch::JobQueue", of, **parameters).values():
            if queue["computeEnvironmentOrder"][0]["computeEnvironment"] in without_machines:
                continue
            self.request("v1/createjobqueue", queue)
        for name in resources("AWS::Logs::LogGroup"):
            self.request("v1/createloggroup", {"logGroupName": name})
        known = definitions(of, **parameters)
        for stage in stages:
            self.request("v1/registerjobdefinition", known[f"millrace-{stage}"])

    def control(self, what: str, **document: Any) -> dict[str, Any]:
        return self.request(f"control/{what}", document)

    def throttle(self, operation: str = "*", times: int | None = 1) -> None:
        """The next calls are answered with 429 (None: all)."""
        self.control("faults", kind="throttle", operation=operation, times=times)

    def fail_calls(self, operation: str = "*", times: int | None = 1) -> None:
        """The next calls are answered with 500, and nothing is done."""
        self.control("faults", kind="fail", operation=operation, times=times)

    def lose_reply(self, operation: str, times: int = 1) -> None:
        """The next calls are done, and their connection closes without an answer."""
        self.control("faults", kind="lose_reply", operation=operation, times=times)

    def refuse_credentials(self) -> None:
        """Every call from now on, until `forgive`."""
        self.control("faults", kind="refuse_credentials", times=None)

    def deny(self, operation: str) -> None:
        """Every call of it from now on, until `forgive`."""
        self.control("faults", kind="deny", operation=operation, times=None)

    def forgive(self) -> None:
        """No more calls fail."""
        self.control("forgive")

    def hide_jobs(self, seconds: float, job: str = "*") -> None:
        """Jobs submitted from now on are neither described nor listed for so long."""
        self.control("faults", kind="hide", seconds=seconds, job=job)

    def hold_runnable(self, job: str = "*", queue: str = "*") -> None:
        """Jobs stay RUNNABLE until `release_runnable`."""
        self.control("faults", kind="hold", job=job, queue=queue)

    def release_runnable(self) -> None:
        self.control("release")

    def kill_host(self, job: str, index: int | None = None, after: float = 0.0) -> None:
        """Once the container has run for `after` seconds; of several containers, one is hit."""
        self.control("faults", kind="host", job=job, index=index, after=after)

    def kill_host_when_log(self, job: str, text: str, index: int | None = None) -> None:
        """As soon as the container's log has a line with this text."""
        self.control("faults", kind="host", job=job, index=index, log=text)

    def fail_pull(self, job: str, times: int = 1) -> None:
        """Its next containers do not start, because their image is missing."""
        self.control("faults", kind="pull", job=job, times=times)

    def out_of_memory(self, job: str, index: int | None = None, text: str | None = None) -> None:
        """At once, or as soon as its log has a line with this text."""
        self.control("faults", kind="memory", job=job, index=index, log=text)

    def delay(self, **seconds: float) -> None:
        """`scheduling` (RUNNABLE), `starting` (STARTING, each node), `joining` (all nodes after the main one), `logs`.

        The last is how late a line can be read.
        """
        self.control("delays", **seconds)

    def scale_timeouts(self, factor: float) -> None:
        """Let each second of attemptDurationSeconds, of which Batch wants 60 at least, last so many."""
        self.control("delays", timeout_scale=factor)

    def credential_requests(self) -> dict[str, int]:
        """How often each instance's endpoint was asked for a role's credentials."""
        requests: dict[str, int] = self.request("control/credentials", None)["requests"]
        return requests

    def calls(self, operation: str | None = None) -> list[dict[str, Any]]:
        """What was called, in order: operation, at (seconds since 1970), outcome, request."""
        found = self.request("control/calls", None)["calls"]
        return [call for call in found if operation in (None, call["operation"])]

    def lives(self, name: str = "*") -> list[Life]:
        """Every container whose process has run, in order; `name` is its job's, or a glob."""
        found = [Life(**one) for one in self.request("control/live", None)["lives"]]
        return [one for one in found if fnmatchcase(one.name, name)]

    def max_live(self, name: str = "*") -> int:
        """The most jobs of that name that ever had processes at once. Nodes and children of one job count as one."""
        return _most_at_once(self.lives(name), lambda life: life.base)

    def max_live_containers(self, name: str = "*") -> int:
        """The most containers of that name that ever were live at once."""
        return _most_at_once(self.lives(name), lambda life: (life.job, life.node))

    def jobs(self) -> list[dict[str, Any]]:
        """All jobs as DescribeJobs shows them, in the order of their submission; without the children of arrays."""
        found: list[dict[str, Any]] = self.request("control/jobs", None)["jobs"]
        return found

    def forget(self) -> None:
        """Kill all that runs; no more jobs, faults, delays, calls. Queues and definitions stay."""
        self.control("forget")

    def request(self, path: str, document: dict[str, Any] | None) -> dict[str, Any]:
        """POST a document to the emulator; None: GET."""
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.url).netloc, timeout=_SECONDS)
        try:
            method = "GET" if document is None else "POST"
            connection.request(method, f"/{path}", None if document is None else json.dumps(document))
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read() or b"{}")
        finally:
            connection.close()
        assert response.status == 200, f"{path}: {response.status} {answer}"
        return answer


def definition(stage: str) -> dict[str, Any]:
    """The RegisterJobDefinition request of a stage, as the template makes it."""
    return definitions()[f"millrace-{stage}"]


def _most_at_once(lives: list[Life], key: Any) -> int:
    most = 0
    for moment in (life.started for life in lives):
        live = {
            key(life) for life in lives if life.started <= moment and (life.stopped is None or life.stopped > moment)
        }
        most = max(most, len(live))
    return most
