"""A container as a process: a session of its own, bound to a core, its output in a pipe, its end in a pidfd.

There is no image and no isolation, but all that it started ends with it, as in a container.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections import Counter
from pathlib import Path

from tests.emulator.containers.places import Folder, User
from tests.emulator.containers.warden import MARK, kill_marked

ROOT = Path(__file__).resolve().parents[3]
NOT_FOUND = 127
_KILLED = 128  # plus the signal, as a shell and Docker tell it
_CHUNK = 1 << 16


class Process:
    """Runs from its making on.

    Raises:
        OSError: there is no such program.
    """

    def __init__(
        self, command: list[str], environment: dict[str, str], core: int | None, mark: str, folder: Folder
    ) -> None:
        self._mark, self._folder = mark, folder
        user = folder.user
        if user:
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment["PYTHONPATH"], user.packages]))
        self.core = core
        # A thread's binding is inherited: bound before it lives, it can have started nothing unbound.
        mine = os.sched_getaffinity(0)
        os.sched_setaffinity(0, mine if core is None else [core])
        try:
            self._popen = subprocess.Popen(
                [_program(command[0], environment, user), *command[1:]],
                env=environment | {MARK: mark},
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                user=user and user.uid,
                group=user and user.gid,
                extra_groups=[] if user else None,
            )
        finally:
            os.sched_setaffinity(0, mine)
        assert self._popen.stdout is not None
        self.output = self._popen.stdout.fileno()
        os.set_blocking(self.output, False)
        self.pidfd = os.pidfd_open(self._popen.pid)

    def read(self) -> bytes | None:
        """The new output; None: nothing now; empty: no process is left that could write more."""
        try:
            return os.read(self.output, _CHUNK)
        except BlockingIOError:
            return None

    def ask_to_end(self) -> None:
        """SIGTERM to the main process alone, as `docker stop` does."""
        self._popen.terminate()

    def kill(self) -> None:
        """The container with all in it, at once."""
        self._popen.kill()
        kill_marked(self._mark)

    def wait(self) -> int:
        """The exit code, once `pidfd` is readable. Nothing that it started is left after that."""
        code = self._popen.wait()
        kill_marked(self._mark)
        return code if code >= 0 else _KILLED - code

    def close(self) -> None:
        os.close(self.pidfd)
        if self._popen.stdout:
            self._popen.stdout.close()
        self._folder.remove()


class Cores:
    """The machine's cores, each with about as many containers as the next."""

    def __init__(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0))
        self._used: Counter[int] = Counter()

    def take(self) -> int:
        core = min(self._cores, key=lambda core: self._used[core])
        self._used[core] += 1
        return core

    def give_back(self, core: int | None) -> None:
        if core is not None:
            self._used[core] -= 1


class Warden:
    """The process that kills all containers when the emulator has ended, also by SIGKILL."""

    def __init__(self) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="emulator-"))  # of all containers' own files
        self.folder.chmod(0o755)
        program = Path(__file__).with_name("warden.py")
        self._popen = subprocess.Popen(
            [sys.executable, "-I", "-S", str(program), self.mark, str(self.folder)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )

    def stop(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self._popen.wait()


def _program(name: str, environment: dict[str, str], user: User | None) -> str:
    if name == "python":
        return user.python if user else sys.executable
    found = shutil.which(name, path=environment.get("PATH"))
    if found is None:
        raise FileNotFoundError(f'exec: "{name}": executable file not found in $PATH')
    return found
