"""Commands in processes of their own, forked from one that has loaded what they load: a new interpreter takes 4 s.

For commands whose subject is not the interpreter itself: its start, its locale, its signals.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.support.processes.command import CommandResult
from tests.support.processes.services import MILLRACE, ROOT

SECONDS = 600.0
_OF_THE_INTERPRETER = ("PYTHON", "LANG", "LC_", "LD_", "OMP_")  # read once, before a command begins


def millrace(
    *arguments: str, environment: Mapping[str, str] | None = None, folder: Path = ROOT, seconds: float = SECONDS
) -> CommandResult:
    """`millrace ARGUMENTS`; `environment` takes the place of this process's."""
    return _run((str(MILLRACE), *arguments), environment, folder, seconds)


def module(
    name: str,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
    seconds: float = SECONDS,
) -> CommandResult:
    """`python -m NAME ARGUMENTS`."""
    return _run(("-m", name, *arguments), environment, folder, seconds)


def _run(words: tuple[str, ...], environment: Mapping[str, str] | None, folder: Path, seconds: float) -> CommandResult:
    """Raises subprocess.TimeoutExpired, after killing it, if the command runs longer than `seconds`."""
    variables = dict(os.environ if environment is None else environment)
    server = _server()
    assert server.serves(variables), "the command needs an interpreter of its own: call it with subprocess"
    with tempfile.TemporaryDirectory() as streams:
        files = [Path(streams) / name for name in ("output", "errors")]
        for file in files:
            file.touch()
        output, errors = (str(file) for file in files)
        request = {
            "words": words,
            "environment": variables,
            "folder": str(folder.resolve()),
            "output": output,
            "errors": errors,
        }
        code = server.code_of(request, seconds)
        return CommandResult(code, *(file.read_text() for file in files))


class _Server:
    """Starts with the first command, and ends with this process."""

    def __init__(self) -> None:
        self._interpreter = _interpreter(os.environ)
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.processes.command_server", str(theirs.fileno())],
                cwd=ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(self._stop)

    def _stop(self) -> None:
        self._channel.close()
        self._process.wait()

    def serves(self, environment: Mapping[str, str]) -> bool:
        return _interpreter(environment) == self._interpreter

    def code_of(self, request: Mapping[str, object], seconds: float) -> int:
        """Return the exit code of a command, negative after a signal."""
        news, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with news:
            with theirs, Path(os.devnull).open("wb") as nowhere:
                socket.send_fds(self._channel, [json.dumps(request).encode()], [nowhere.fileno(), theirs.fileno()])
            begun, (pidfd,), _, _ = socket.recv_fds(news, 64, 1)
            assert begun == b"begun"
            try:
                if not select.select([news], [], [], seconds)[0]:
                    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                    raise subprocess.TimeoutExpired(str(request["words"]), seconds)
                return int(news.recv(64))
            finally:
                os.close(pidfd)


_server = functools.cache(_Server)


def _interpreter(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith(_OF_THE_INTERPRETER)}
