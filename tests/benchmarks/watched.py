"""A command of Millrace in a process of its own, with the peak memory of that process and of each of its workers."""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.processes.services import MILLRACE

EVERY_SECONDS = 0.1
ROOT = Path(__file__).resolve().parents[2]


class Watched:
    """Runs the command inside the block; `peaks` is MiB by name, `command` and the names of stages."""

    def __init__(self, workspace: Path | str, *arguments: str) -> None:
        self._workspace, self._arguments = workspace, arguments
        self.peaks: dict[str, float] = {}
        self._ended = threading.Event()
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self._said = tempfile.TemporaryFile("w+")
        paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"MILLRACE_WORKSPACE": str(self._workspace), "PYTHONPATH": paths}
        command = [str(MILLRACE), *self._arguments]
        self._began = time.monotonic()
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=self._said, stdin=subprocess.DEVNULL, text=True
        )
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        self._watcher.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._ended.set()
        self._watcher.join()
        self._said.close()

    def finish(self) -> str:
        """What it printed. Raises RuntimeError: it failed."""
        output, _ = self.process.communicate()
        self.seconds = time.monotonic() - self._began
        if self.process.returncode:
            self._said.seek(0)
            raise RuntimeError(f"millrace {' '.join(self._arguments)}: {self.process.returncode}\n{self._said.read()}")
        return output

    def _watch(self) -> None:
        while not self._ended.wait(EVERY_SECONDS):
            self._note("command", self.process.pid)
            for entry in Path("/proc").iterdir():
                if entry.name.isdecimal() and (stage := self._stage(entry)):
                    self._note(stage, int(entry.name))

    def _stage(self, process: Path) -> str | None:
        """The stage, if the process is a worker over this workspace."""
        with contextlib.suppress(OSError):
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "tasks.worker" in words and any(word.startswith(f"{self._workspace}#") for word in words):
                return words[words.index("tasks.worker") + 1]
            if "tasks.worker.search" in words and str(self._workspace) in words:
                return "search"
        return None

    def _note(self, name: str, pid: int) -> None:
        with contextlib.suppress(OSError):
            self.peaks[name] = max(self.peaks.get(name, 0.0), peak_mib(pid))


def peak_mib(pid: int) -> float:
    """The most memory that a process has held so far, MiB; 0 for one that has ended."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM")), 0.0)
