"""Chaos on AWS Batch and S3, both emulated here: the shop, the servers and the bucket of tests/benchmarks/faults."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from infra.store.base import Store
from tasks.contracts.stages import Stage
from tasks.runs.plan import planned_runs
from tests.benchmarks.chaos.command import Command
from tests.benchmarks.chaos.draws import Act, Draw
from tests.benchmarks.chaos.local import FALTERING
from tests.benchmarks.chaos.place import Ended, Undisturbed, first_stage
from tests.benchmarks.chaos.watching import watched
from tests.benchmarks.faults import world
from tests.benchmarks.faults.world import SPAN, World
from tests.support.cloud.s3 import Fault
from tests.support.workspace.shop import STAGES

DELAY_SECONDS = 0.3
LOOK_SECONDS = 0.2  # between two listings of the bucket, which serves one request at a time
_METHODS = ("GET", "HEAD", "PUT", "POST", "DELETE")
_OUTAGE = 10_000  # requests, more than there are


class InTheCloud(Protocol):
    """A place with the servers of a `World`."""

    world: World
    folder: Path


class CloudPlace:
    """AWS Batch with two nodes for training and four jobs for inference, a workspace on S3, a Prefect server."""

    name = "AWS Batch and S3, both emulated"
    whole_share = 0.2

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        inherited = filter(None, [str(FALTERING), os.environ.get("PYTHONPATH", "")])
        containers = {"MILLRACE_CHAOS_FOLDER": str(folder), "PYTHONPATH": os.pathsep.join(inherited)}
        self.world, self.folder = World(folder, containers), folder
        scene = CloudScene(self, world.Scene(self.world, self.world.base, STAGES))
        try:
            say(f"{SPAN} is run on the emulated cloud, undisturbed")
            started = time.time()
            ended = scene.start().finish()
            assert ended.code == 0, ended.err
            (run_key,) = planned_runs(scene.store)
            self.undisturbed: Undisturbed = watched(scene.store, run_key, started, time.time())
        except BaseException:
            scene.close(keep=False)  # first: a command that goes on starts its server again
            self.stop()
            raise

    def scene(self, draw: Draw) -> CloudScene:
        return CloudScene(self, self.world.scene(tuple(STAGES[STAGES.index(first_stage(draw)) :])))

    def stop(self) -> None:
        self.world.stop()


class CloudScene:
    """A workspace in a bucket of its own."""

    def __init__(
        self, place: InTheCloud, scene: world.Scene, span: str = SPAN, earlier: frozenset[str] = frozenset()
    ) -> None:
        """`earlier` are the keys of runs before the one that is disturbed."""
        self._place, self.scene, self._span, self._earlier = place, scene, span, earlier
        self.store: Store = scene.store
        self._commands: list[Command] = []

    def start(self) -> CloudRunning:
        return CloudRunning(self, self.command(*self.run_words()))

    def run_words(self) -> tuple[str, ...]:
        """Return the command that runs the pipeline over the span."""
        fixed = ("run", "--config", str(self._place.world.config_file), "--span", self._span, "--json")
        return (*fixed, "--workspace", self.scene.uri)

    def command(self, *words: str, **variables: str) -> Command:
        """Begin `millrace` with these words and `variables` over this process's environment."""
        self._commands.append(Command(words, {**os.environ, **variables}))
        return self._commands[-1]

    def began(self, stage: Stage) -> bool:
        time.sleep(LOOK_SECONDS)
        keys = [key for key in self.store.list("runs") if key.split("/")[1] not in self._earlier]
        return any(f"/{stage}/attempt-" in key and key.endswith("/ledger.json") for key in keys)

    def workers(self) -> list[int]:
        return [pid for stage in STAGES for pid in self.scene.workers(stage)]

    def server(self) -> int | None:
        with contextlib.suppress(OSError, ValueError):
            pid = int(json.loads((self._place.world.home / "server.json").read_bytes())["pid"])
            os.kill(pid, 0)
            return pid
        return None

    def falter(self, act: Act) -> None:
        s3 = self._place.world.s3
        if act is Act.disk_full:
            self._switch.symlink_to(act.value)
        elif act is Act.store_delays:
            s3.delay_seconds = DELAY_SECONDS
        else:
            s3.faults += [Fault(method, 503, "SlowDown") for method in _METHODS] * _OUTAGE

    def recover(self) -> None:
        self._switch.unlink(missing_ok=True)
        self._place.world.s3.forget()

    def left_over(self) -> list[str]:
        return [
            *self._jobs(),
            *self._twins(),
            *self._lock(),
            *(f"{folder} is half written" for folder in self.scene.half_written()),
        ]

    def close(self, keep: bool) -> str:
        for command in self._commands:
            command.end()
        if not keep:
            return self.scene.uri
        folder = self._place.folder / "kept" / self.scene.uri.split("/")[2]
        return str(self._place.world.s3.copied(self.scene.uri, folder))

    @property
    def _switch(self) -> Path:
        return self._place.folder / "faltering"

    def _jobs(self) -> Iterator[str]:
        batch = self._place.world.batch
        yield from (f"container {name} is still live" for name in self.scene.left_live())
        for job in batch.jobs():
            if job["status"] not in ("SUCCEEDED", "FAILED"):
                yield f"job {job['jobName']} is {job['status']}"

    def _twins(self) -> Iterator[str]:
        for stage in STAGES:
            if (most := self._place.world.batch.max_live(f"*-{stage}-*")) > 1:
                yield f"{most} jobs of {stage} were live at once"

    def _lock(self) -> Iterator[str]:
        if holder := self.store.peek("lineages/main.run"):
            yield f"lineages/main.run is in use by {holder.name}"


class CloudRunning:
    """A command, and the containers that work for it."""

    def __init__(self, scene: CloudScene, command: Command) -> None:
        self._scene, self._command = scene, command
        self._stopped: list[int] = []

    @property
    def over(self) -> bool:
        return self._command.over

    def send(self, number: signal.Signals) -> None:
        self._command.send(number)

    def send_all(self, number: signal.Signals) -> None:
        """Send a signal to the orchestrator and to the workers that run now; SIGCONT to those that got SIGSTOP."""
        self._command.send_all(number)
        if number is not signal.SIGCONT:
            self._stopped = self._scene.workers()
        for pid in self._stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def finish(self) -> Ended:
        return self._command.finish()
