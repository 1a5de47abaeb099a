"""The state machine: moves jobs from SUBMITTED to their end.

One thread does it all and lives as long as the emulator; it sleeps until a container writes something, ends, or
time is up. Other threads hold `lock` while they look at jobs. It is a model of what AWS documents, not of AWS:
there are no shares and no priorities.
"""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import socket
import threading
import time
import traceback
import uuid

from tests.emulator.containers.containers import Containers
from tests.emulator.containers.hosts import Hosts, Needs
from tests.emulator.engine import plans, retries
from tests.emulator.engine.aws import Document, ServiceError, arn, now_ms
from tests.emulator.engine.faults import Faults, Strike
from tests.emulator.engine.logs import Logs
from tests.emulator.engine.records import Attempt, Container, Ending, Job, Settings

HOST_LOST = "Host EC2 (instance {host}) terminated."
TIMED_OUT = "Job attempt duration exceeded timeout"
CHILD_FAILED = "Array Child Job failed"
OUT_OF_MEMORY = "OutOfMemoryError: Container killed due to memory usage"
PULL_FAILED = "CannotPullContainerError: Error response from daemon: manifest for {image} not found"
CANCELLED = "Canceled by JobStateTimeLimit action due to reason: {reason}"
_BROKEN = 70


class Engine:
    """Runs from its making until `stop`."""

    def __init__(self, settings: Settings, faults: Faults, logs: Logs, url: str) -> None:
        self.lock = threading.RLock()
        self.jobs: dict[str, Job] = {}  # by id, in the order of submission; children of arrays too
        self.hosts = Hosts()
        self.containers = Containers(logs, settings, url)
        self._slots, self._faults = settings.slots, faults
        self._submitted: list[Job] = []
        self._runnable: list[tuple[Job, float]] = []  # and since when, time.monotonic()
        self._running: list[Job] = []  # STARTING too
        self._wake_at = math.inf
        self._stopping = False
        self._woken, self._waker = socket.socketpair()
        self._waker.setblocking(False)
        self.containers.selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Kill everything that runs."""
        with self.lock:
            self._stopping = True
            self.wake()
        self._thread.join()
        self.containers.stop()

    def wake(self) -> None:
        """Let the thread look at all jobs again."""
        with contextlib.suppress(BlockingIOError):  # so full that one more changes nothing
            self._waker.send(b"!")

    def add(self, job: Job) -> None:
        for one in (job, *job.children):
            self.jobs[one.id] = one
        self._submitted += job.children or [job]
        self.wake()

    def end(self, job: Job, ending: Ending) -> None:
        """What runs is asked to end; what doesn't run yet fails now."""
        if job.over or job.ending:
            return
        attempt = job.attempt
        if job.children:
            job.ending = ending
            for child in job.children:
                self.end(child, ending)
        elif attempt is None:
            job.ending = ending._replace(kind="cancelled")
            self._finish(job, "FAILED", ending.reason)
        elif not attempt.main.over:
            job.ending = ending
            for container in attempt.containers:
                self.containers.ask_to_end(container)
        self.wake()

    def terminate_instances(self, request: Document) -> Document:
        """A machine shuts down: what runs there gets SIGTERM, and nothing else is placed there.

        Raises:
            ServiceError: there is no such machine.
        """
        for name in request["instanceIds"]:
            if self.hosts.named(name) is None:
                raise ServiceError(f"The instance ID '{name}' does not exist", "InvalidInstanceID.NotFound")
            for container in (one for job in self._running for one in job.attempts[-1].containers):
                if container.host.id == name:
                    self.hosts.lose(container.host)
                    _lost(container)
                    self.containers.ask_to_end(container)
        self.wake()
        return {}

    def forget(self) -> None:
        """Kill everything that runs, and remember no job."""
        with self.lock:
            for job in self._running:
                for container in job.attempts[-1].containers:
                    self.containers.kill(container)
            for known in (self._submitted, self._runnable, self._running, self.jobs, self.containers.lives):
                known.clear()
            self.hosts = Hosts()

    def _run(self) -> None:
        try:
            while not self._stopping:
                pause = max(0.0, self._wake_at - time.monotonic())
                ready = self.containers.selector.select(None if math.isinf(pause) else pause)
                with self.lock:
                    for key, _ in ready:
                        if isinstance(key.data, Container):
                            self.containers.read(key.data, key.fd)
                        else:
                            self._woken.recv(4096)
                    self._step()
            self.forget()
        except Exception:
            traceback.print_exc()
            os._exit(_BROKEN)  # rather than jobs that never end; the warden kills the containers

    def _step(self) -> None:
        self._wake_at = math.inf
        for job in self._submitted:
            if not job.over:
                self._queue(job)
        self._submitted.clear()
        for job in list(self._running):
            self._tend(job)
        free = self._slots - sum(job.nodes for job in self._running)
        waiting, self._runnable = self._runnable, []
        for job, since in waiting:
            fits = free >= min(job.nodes, self._slots) and not self._faults.held(job)
            if job.over or self._is_cancelled(job, since):
                continue
            if fits and self._due(since + self._faults.delays.scheduling) and self._place(job):
                free -= job.nodes
            else:
                self._runnable.append((job, since))

    def _is_cancelled(self, job: Job, since: float) -> bool:
        """Whether a job that no instance can ever run has waited as long as its queue lets it."""
        needs = Needs.of(job, plans.container_properties(job))
        never = self.hosts.never(job.queue.environments, needs, job.nodes)
        if never is None:
            return False
        job.status_reason, reason = never, never.partition(" ")[0]
        if not self._due(since + job.queue.patience_seconds(reason) * self._faults.delays.timeout_scale):
            return False
        self._finish(job, "FAILED", CANCELLED.format(reason=reason))
        return True

    def _due(self, at: float) -> bool:
        """Whether a moment of time.monotonic() has come; if not, the engine wakes for it."""
        if time.monotonic() >= at:
            return True
        self._wake_at = min(self._wake_at, at)
        return False

    def _queue(self, job: Job) -> None:
        job.status = "RUNNABLE"
        if job.parent:
            job.parent.status = "PENDING"  # all that the parent of an array ever is before its end
        self._runnable.append((job, time.monotonic()))
        self.wake()

    def _place(self, job: Job) -> bool:
        """RUNNABLE to STARTING, if there is room for all nodes: each is on an instance of its own."""
        properties = plans.container_properties(job)
        hosts = self.hosts.take(job.queue.environments, Needs.of(job, properties), job.nodes)
        if hosts is None:
            return False
        containers = [
            Container(node, host, properties, arn("task", f"emulator/{uuid.uuid4().hex}", service="ecs"))
            for node, host in enumerate(hosts)
        ]
        ready_at = time.monotonic() + self._faults.delays.starting
        job.attempts.append(Attempt(len(job.attempts) + 1, containers, containers[job.main], ready_at))
        job.status = "STARTING"
        self._running.append(job)
        self._tend(job)
        return True

    def _tend(self, job: Job) -> None:
        """Start, strike and end containers whose moment has come."""
        attempt = job.attempts[-1]
        self._start(job, attempt)
        for container in attempt.containers:
            if container.live:
                self._strike(job, container)
            if attempt.main.over:
                self.containers.ask_to_end(container)
            if container.live and container.kill_at is not None and self._due(container.kill_at):
                self.containers.kill(container)
        if attempt.ends_at is not None and not attempt.main.over and not job.ending and self._due(attempt.ends_at):
            self.end(job, Ending("timeout", TIMED_OUT))
        if attempt.main.over and not any(one.live for one in attempt.containers):
            self._conclude(job, attempt)

    def _start(self, job: Job, attempt: Attempt) -> None:
        """The main node first: STARTING to RUNNING; then the others in order. None once the job is to end."""
        main = attempt.main
        for container in (main, *(one for one in attempt.containers if one is not main)):
            if container.process or container.over:
                continue
            if job.ending or main.over:
                container.stopped_at = now_ms()
                continue
            if not self._due(attempt.ready_at):
                return
            if self._faults.take_strike("pull", job, container):
                self.containers.never_ran(container, PULL_FAILED.format(image=container.properties["image"]))
            else:
                self.containers.launch(job, attempt, container)
            if container is main and container.live:
                job.status, job.started_at = "RUNNING", container.started_at
                if seconds := job.timeout.get("attemptDurationSeconds"):
                    attempt.ends_at = time.monotonic() + seconds * self._faults.delays.timeout_scale
            delays = self._faults.delays  # from now on: a busy machine may take long to launch a process
            attempt.ready_at = time.monotonic() + delays.starting + delays.joining / max(1, job.nodes - 1)

    def _strike(self, job: Job, container: Container) -> None:
        """Take a container's host or memory away, if a test wants that now."""
        assert container.stream is not None
        assert container.live_from is not None
        ran = time.time() - container.live_from
        for strike in self._faults.strikes:
            if strike.kind == "pull" or not container.live or not strike.aims_at(job, container):
                continue
            said = strike.log is None or container.stream.says(strike.log)
            if said and self._due(time.monotonic() + strike.after - ran):
                strike.times -= 1
                self._hit(strike, container)

    def _hit(self, strike: Strike, container: Container) -> None:
        if strike.kind == "host":
            _lost(container)
            self.hosts.lose(container.host)
        else:
            container.reason = OUT_OF_MEMORY
        self.containers.kill(container)

    def _conclude(self, job: Job, attempt: Attempt) -> None:
        """All nodes of an attempt are over: the main one decides."""
        main = attempt.main
        attempt.over = True
        self._running.remove(job)
        for container in attempt.containers:
            self.hosts.give_back(job, container)
        if job.ending:
            main.status_reason = job.ending.reason
            self._finish(job, "FAILED", job.ending.reason)
        elif main.exit_code == 0:
            self._finish(job, "SUCCEEDED", main.status_reason)
        elif retries.again(job.retry, attempt.number, main):
            job.status_reason = main.status_reason
            self._queue(job)
        else:
            self._finish(job, "FAILED", main.status_reason)

    def _finish(self, job: Job, status: str, reason: str | None) -> None:
        job.status, job.status_reason, job.stopped_at = status, reason, now_ms()
        parent = job.parent
        if parent:
            parent.children_over += 1
        if parent and parent.children_over == len(parent.children):
            failed = any(child.status == "FAILED" for child in parent.children)
            why = parent.ending.reason if parent.ending else CHILD_FAILED
            self._finish(parent, "FAILED" if failed else "SUCCEEDED", why if failed else None)


def _lost(container: Container) -> None:
    """Its machine is gone. What AWS Batch says of a pod's is not documented, so nothing is said."""
    container.host_lost = True
    container.status_reason = None if "pod" in container.properties else HOST_LOST.format(host=container.host.id)
