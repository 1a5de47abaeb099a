"""Runs on this machine, with a workspace in a folder.

While the last month runs undisturbed, the workspace is copied before each stage; a scene begins with such a copy.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from infra.prefect_server import OWNER
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.foundation.errors import CodeError
from tests.benchmarks.disturbed.command import Command, processes
from tests.benchmarks.disturbed.world import Scene, World
from tests.support.processes.command import CommandResult

HERE = Path(__file__).parent
FALTERING, READING = HERE / "faltering", HERE / "reading"
MARK = "MILLRACE_CHAOS_FOLDER"  # in the environment of every process of a scene but the Prefect server
POLL_SECONDS = 0.02
TRIES = 3
FORKERS = ("tasks.worker.warm_parent", "tasks.worker.search.encode_released")
END_SECONDS = 20.0  # the longest that workers take to see that their orchestrator is gone


def hooked(folder: Path) -> str:
    """Return the PYTHONPATH with which processes import the sitecustomize.py of a folder."""
    return os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))


class LocalWorld(World):
    """Two months; half of the disturbed runs begin with their first stage."""

    name = "This machine, the workspace in a folder"
    whole_share = 0.5
    config_file = HERE / "chaos.yaml"

    def serve(self) -> LocalScene:
        self.scratch = self.folder / "tmp"
        self.scratch.mkdir(parents=True)
        return LocalScene(self, self.folder / "undisturbed")

    def keep(self, base: Scene) -> None:
        shutil.copytree(base.store.uri, self._before(Stage.validate))

    def run_last(self, base: Scene) -> CommandResult:
        """Run the last month with a copy before each of the stages; on a busy machine one may come too late."""
        result, tries = self._copied(base), 1
        while late := [stage for stage in tuple(Stage)[1:] if self._is_late(stage)]:
            if tries == TRIES:
                raise CodeError(f"the machine is too busy: {', '.join(late)} ended before the workspace was copied")
            shutil.rmtree(base.store.uri)
            shutil.copytree(self._before(Stage.validate), base.store.uri)
            result, tries = self._copied(base), tries + 1
        for stage in tuple(Stage)[1:]:
            for begun in self._of_last(stage):
                shutil.rmtree(begun)
        return result

    def _copied(self, base: Scene) -> CommandResult:
        """Run it, and copy the workspace when each stage has begun, while all processes stand."""
        command = base.start()
        for stage in tuple(Stage)[1:]:
            while not (stage in base.begun() or command.over):
                time.sleep(POLL_SECONDS)
            shutil.rmtree(self._before(stage), ignore_errors=True)
            command.send_all(signal.SIGSTOP)
            shutil.copytree(base.store.uri, self._before(stage), ignore=shutil.ignore_patterns(".tmp-*"))
            command.send_all(signal.SIGCONT)
        return command.finish()

    def _is_late(self, stage: Stage) -> bool:
        """Return whether the stage had left something beside its own folder: a checkpoint, or a release."""
        return any((folder / "result.json").exists() for folder in self._of_last(stage))

    def _of_last(self, stage: Stage) -> list[Path]:
        return [path for path in self._before(stage).glob(f"runs/*/{stage}") if path.parent.name not in self.earlier]

    def scene(self, name: str, stages: Sequence[Stage]) -> LocalScene:
        """Return a scene in which all stages from the first of `stages` on are not done."""
        scene = LocalScene(self, self.folder / name, stages)
        shutil.copytree(self._before(stages[0]), scene.root)
        return scene

    def _before(self, stage: Stage) -> Path:
        return self.folder / "before" / stage


class LocalScene(Scene):
    """A workspace in a folder. Its files falter on request, and readers' changes are written down."""

    world: LocalWorld

    def __init__(self, world: LocalWorld, files: Path, stages: Sequence[Stage] = tuple(Stage)) -> None:
        self.root = files / "workspace"
        super().__init__(world, DirectoryStore(self.root), stages, files)
        self._switch, self._changes = files / "faltering", files / "changes-by-readers"

    def command(self, *words: str, **variables: str) -> Command:
        own = {MARK: str(self.files), "PYTHONPATH": hooked(FALTERING), "TMPDIR": str(self.world.scratch)}
        return super().command(*words, **own | variables)

    def reader(self, *words: str) -> Command:
        own = {"MILLRACE_CHAOS_WORKSPACE": str(self.root), "MILLRACE_CHAOS_CHANGES": str(self._changes)}
        return self.command(*words, PYTHONPATH=hooked(READING), **own)

    def changed_by_readers(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError):
            return sorted({f"a reader did {line}" for line in self._changes.read_text().splitlines()})
        return []

    def falter(self, how: str) -> None:
        self._switch.symlink_to(how)

    def recover(self) -> None:
        self._switch.unlink()

    def left_over(self) -> list[str]:
        return [*self._left_processes(), *self._left_files(), *self.locks()]

    def close(self, keep: bool) -> None:
        super().close(keep)
        for path in self.world.scratch.glob("millrace-*"):
            shutil.rmtree(path, ignore_errors=True)

    def end(self) -> None:
        super().end()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def processes(self) -> list[int]:
        """Return all that was started in this scene and goes on, but the Prefect server."""
        mine = [one for one in processes() if one.variables.get(MARK) == str(self.files)]
        return [one.pid for one in mine if OWNER not in one.variables]

    def forkers(self) -> list[int]:
        mine = set(self.processes())
        return [one.pid for one in processes() if one.pid in mine and one.module in FORKERS]

    def _left_processes(self) -> Iterator[str]:
        deadline = time.monotonic() + END_SECONDS
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        yield from (f"process {pid} goes on" for pid in found)

    def _left_files(self) -> Iterator[str]:
        for path in sorted(self.root.rglob(".tmp-*")):
            yield f"{path.relative_to(self.root)} is left in the workspace"
        for path in sorted(self.world.scratch.glob("millrace-*")):
            yield f"{path.name} is left in the folder of temporary files"
