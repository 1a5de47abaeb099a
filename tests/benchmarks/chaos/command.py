"""The command `millrace` in a process group of its own, and the processes that belong to a scene."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from infra.prefect_server import OWNER
from tests.benchmarks.chaos.place import Ended

LONGEST_SECONDS = 900.0  # a command that takes longer hangs
MARK = "MILLRACE_CHAOS_SCENE"  # in the environment of every process of a scene


class Command:
    """`millrace` with some arguments, started when it is made."""

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115
        millrace = str(Path(sys.executable).with_name("millrace"))
        self._popen = subprocess.Popen(
            [millrace, *arguments],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=self._out,
            stderr=self._err,
            start_new_session=True,
        )

    @property
    def over(self) -> bool:
        return self._popen.poll() is not None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to this process alone; nothing happens once it has ended."""
        self._popen.send_signal(number)

    def send_all(self, number: signal.Signals) -> None:
        """Send a signal to its process group: to its workers too, but not to a Prefect server."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, number)

    def finish(self) -> Ended:
        """Wait for its end; one that takes longer than `LONGEST_SECONDS` is killed, with its workers."""
        code: int | None
        try:
            code = self._popen.wait(LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            code = None
            self._kill()
        return Ended(code, *(_content(stream) for stream in (self._out, self._err)))

    def end(self) -> None:
        """Kill what is left of the group, and forget what it said."""
        self._kill()
        for stream in (self._out, self._err):
            stream.close()

    def _kill(self) -> None:
        self.send_all(signal.SIGKILL)
        self._popen.wait()


def processes_of(mark: str, *words: str) -> list[int]:
    """Return the processes of the scene `mark` with these words in their command line; never a Prefect server."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or belongs to another user
            variables = (place / "environ").read_bytes().split(b"\0")
            ours = f"{MARK}={mark}".encode() in variables
            server = any(each.startswith(f"{OWNER}=".encode()) for each in variables)
            if ours and not server:
                line = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                if all(word in line for word in words):
                    found.append(int(place.name))
    return sorted(found)


def _content(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")
