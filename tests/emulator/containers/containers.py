"""Starts the containers of a job, reads their output, ends them, and records how they ended."""

from __future__ import annotations

import math
import selectors
import time
from typing import NamedTuple

from tests.emulator.containers.environment import container_environment
from tests.emulator.containers.places import Folder, user_named
from tests.emulator.containers.processes import NOT_FOUND, Cores, Process, Warden
from tests.emulator.engine.aws import now_ms
from tests.emulator.engine.logs import Logs
from tests.emulator.engine.records import Attempt, Container, Job, Settings

EXITED = "Essential container in task exited"
STOPPED_AT_START = "Task failed to start"
_REASON_LENGTH = 255


class Life(NamedTuple):
    """A container that ran; `live_from` and `live_until` are in the container."""

    job: Job
    attempt: int
    container: Container


class Containers:
    """Only the thread that owns it starts any."""

    def __init__(self, logs: Logs, settings: Settings, url: str) -> None:
        self.selector = selectors.DefaultSelector()
        self.lives: list[Life] = []
        self._logs, self._settings, self._url = logs, settings, url
        self._warden = Warden()
        self._cores = Cores()

    def stop(self) -> None:
        self._warden.stop()

    def launch(self, job: Job, attempt: Attempt, container: Container) -> None:
        task = container.task_arn.rsplit("/", 1)[-1]
        user = user_named(container.properties.get("user")) if self._settings.users else None
        folder = Folder(self._warden.folder / task, user)
        environment = container_environment(job, attempt, container, self._url, self._settings.image, folder)
        core = None if self._settings.whole_machine else self._cores.take()
        folder.make()
        try:
            mark = f"{self._warden.mark}/{task}"
            process = Process(container.properties["command"], environment, core, mark, folder)
        except OSError as error:
            self._cores.give_back(core)
            folder.remove()
            self.never_ran(container, f"CannotStartContainerError: {error}", NOT_FOUND)
            return
        container.process = process
        container.stream = self._logs.open(container.properties, job.definition.name, task)
        container.started_at = now_ms()
        container.live_from = time.time()
        self.lives.append(Life(job, attempt.number, container))
        for descriptor in (process.output, process.pidfd):
            self.selector.register(descriptor, selectors.EVENT_READ, container)

    def never_ran(self, container: Container, reason: str, exit_code: int | None = None) -> None:
        container.reason, container.status_reason = reason[:_REASON_LENGTH], STOPPED_AT_START
        container.exit_code, container.stopped_at = exit_code, now_ms()

    def read(self, container: Container, descriptor: int) -> None:
        """It has written something, or its main process has ended."""
        process, stream = container.process, container.stream
        if process is None or stream is None or not container.live:
            return  # killed while this was on its way
        if descriptor == process.pidfd:
            self._reap(container, process)
        elif data := process.read():
            stream.write(data)
        elif data == b"":
            self.selector.unregister(process.output)

    def ask_to_end(self, container: Container) -> None:
        """SIGTERM, once; SIGKILL follows at `kill_at`."""
        if container.process and container.live and container.kill_at is None:
            container.process.ask_to_end()
            container.kill_at = time.monotonic() + self._settings.grace_seconds

    def kill(self, container: Container) -> None:
        if container.process and container.live:
            container.kill_at = math.inf
            container.process.kill()
            self._reap(container, container.process)

    def _reap(self, container: Container, process: Process) -> None:
        """Keep the last output and the exit code of a dead container."""
        code = process.wait()
        assert container.stream is not None
        while data := process.read():
            container.stream.write(data)
        container.stream.end()
        for descriptor in (process.output, process.pidfd):
            if descriptor in self.selector.get_map():
                self.selector.unregister(descriptor)
        process.close()
        self._cores.give_back(process.core)
        container.exit_code = None if container.host_lost else code
        if "pod" not in container.properties:
            container.status_reason = container.status_reason or EXITED
        container.stopped_at = now_ms()
        container.live_until = time.time()
