"""Programs of the Neuron SDK as child processes: found, run with a time limit, and never left running.

What they print is understood in the module of each tool; nothing here knows a format.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import ValidationError

from tasks.errors import ConfigError, HangError, HostError

SDK_FOLDER = Path("/opt/aws/neuron/bin")  # where the packages install to; not every image has it on PATH
EFA_FOLDER = Path("/opt/amazon/efa/bin")
PACKAGES = {
    "neuron-ls": "aws-neuronx-tools",
    "neuron-monitor": "aws-neuronx-tools",
    "nccom-test": "aws-neuronx-tools",
    "neuron_parallel_compile": "torch-neuronx",
    "fi_info": "the EFA installer",
}
GRACE_SECONDS = 5.0
TAIL_LINES = 15


class ToolOutput(NamedTuple):
    """What a tool left behind. `command` is as one would type it."""

    command: str
    code: int
    stdout: str
    stderr: str

    @property
    def tail(self) -> str:
        """Its last words, for messages."""
        return tail(self.stderr if self.stderr.strip() else self.stdout)


def find_tool(name: str, path: str | None = None) -> str:
    """The executable behind `name`, on `path` (default: PATH) or where its package installs to.

    Raises:
        ConfigError: there is none; names the package that has it.
    """
    path = os.environ.get("PATH", os.defpath) if path is None else path
    folder = EFA_FOLDER if name == "fi_info" else SDK_FOLDER
    found = shutil.which(name, path=os.pathsep.join([path, str(folder)]))
    if found is None:
        raise ConfigError(
            f"{name} is neither on PATH nor in {folder}. It comes with {PACKAGES[name]}: install that, or use an "
            "image of the Neuron SDK; on a machine without NeuronCores, set PJRT_DEVICE=CPU or another accelerator"
        )
    return found


@contextlib.contextmanager
def started(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    merge: bool = False,
) -> Iterator[subprocess.Popen[str]]:
    """A tool while it runs, with piped output (`merge`: stderr in stdout); on leaving, it and its children are ended.

    Raises:
        ConfigError: the file can't be executed.
    """
    try:
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # the tools start processes of their own, which would outlive them
        )
    except OSError as error:
        raise ConfigError(f"{command[0]} can't be started: {error}; install {_package(command[0])} again") from error
    with process:  # closes the pipes, after the end
        try:
            yield process
        finally:
            _end(process)


def run_tool(
    name: str, *arguments: str, timeout_seconds: float, environment: Mapping[str, str] | None = None
) -> ToolOutput:
    """Run a tool to its end, whatever its exit status; `environment` None is this process's own.

    Raises:
        ConfigError: it is not installed.
        HangError: it took longer than `timeout_seconds`, and was ended.
    """
    written = shlex.join([name, *arguments])
    with started([find_tool(name), *arguments], environment) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired as error:
            _end(process)
            stdout = stderr = ""
            with contextlib.suppress(subprocess.TimeoutExpired):  # a child that left its session may hold the pipes
                stdout, stderr = process.communicate(timeout=GRACE_SECONDS)
            raise HangError(
                f"{written} did not end within {timeout_seconds:g} s; the driver or a device may be stuck (dmesg says "
                f"more). Its last lines:\n{tail(stderr or stdout)}"
            ) from error
    return ToolOutput(written, process.returncode, stdout, stderr)


def parse_json(text: str, source: str) -> Any:
    """The JSON that a tool printed or wrote.

    Raises:
        HostError: there is none, or it breaks off; says what was there instead.
    """
    if not text.strip():
        raise HostError(f"{source} is empty")
    try:
        return json.loads(text)
    except ValueError as error:
        raise HostError(f"{source} is not JSON ({error}):\n{tail(text)}") from error


def explain(error: ValidationError) -> str:
    """`key: what is wrong with it`, for each key of a tool's output that is not as documented."""
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'top level'}: {each['msg']}" for each in error.errors())


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """The last lines that say something."""
    said = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(said[-lines:]) or "(it said nothing)"


def _package(executable: str) -> str:
    return PACKAGES.get(Path(executable).name, "it")


def _end(process: subprocess.Popen[str]) -> None:
    """SIGTERM to the tool and its children, SIGKILL after the grace time, and to children that it left behind."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
