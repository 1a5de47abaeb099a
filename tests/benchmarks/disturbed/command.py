"""The command `millrace` in a process group of its own, and the processes of this machine by their environment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from tests.support.processes.command import CommandResult
from tests.support.processes.services import MILLRACE

LONGEST_SECONDS = 900.0  # a command that takes longer hangs
CONTINUED, CONTINUE_SECONDS = 3, 0.3  # SIGCONT after the first
HUNG = 124  # the code of such a command, as of coreutils' timeout


class Command:
    """`millrace` with some words and `variables` over this process's environment, started when it is made."""

    def __init__(self, words: Sequence[str], variables: Mapping[str, str]) -> None:
        self.words, self.began = tuple(words), time.time()
        self._out, self._err = (tempfile.TemporaryFile() for _ in range(2))  # noqa: SIM115
        self._popen = subprocess.Popen(
            [str(MILLRACE), *words],
            env={**os.environ, **variables},
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
        """Send a signal to its process group: to its workers too, but not to a Prefect server.

        SIGCONT is sent again: to a process that was being forked when SIGSTOP came, Linux passes on that alone.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._popen.pid, number)
            for _ in range(CONTINUED if number is signal.SIGCONT else 0):
                time.sleep(CONTINUE_SECONDS)
                os.killpg(self._popen.pid, number)

    def finish(self) -> CommandResult:
        """Wait for its end; one that takes longer than `LONGEST_SECONDS` is killed, with its workers."""
        try:
            code = self._popen.wait(LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            code = HUNG
            self._kill()
        return CommandResult(code, *(_content(stream) for stream in (self._out, self._err)))

    def end(self) -> None:
        """Kill the rest of the group, and forget its output."""
        self._kill()
        for stream in (self._out, self._err):
            stream.close()

    def _kill(self) -> None:
        self.send_all(signal.SIGKILL)
        self._popen.wait()


def end_at_sigterm() -> None:
    """From now on SIGTERM is an exception in this process, so that all that it started ends too."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))


class Process(NamedTuple):
    """A process of this user."""

    pid: int
    words: tuple[str, ...]
    variables: dict[str, str]

    @property
    def module(self) -> str:
        """The module that Python runs as a program; empty for another program."""
        return self.words[self.words.index("-m") + 1] if "-m" in self.words[:-1] else ""


def processes() -> Iterator[Process]:
    """Yield all of this machine that this user may look into."""
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it ended, or belongs to another user
            words, pairs = (
                (place / name).read_bytes().decode(errors="replace").split("\0") for name in ("cmdline", "environ")
            )
            variables = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
            yield Process(int(place.name), tuple(words), variables)


def _content(stream: IO[bytes]) -> str:
    stream.seek(0)
    return stream.read().decode(errors="replace")
