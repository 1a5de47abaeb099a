"""Finds programs of the Neuron SDK and runs them as child processes, with a time limit and a certain end.

The module of each tool parses its output; this module knows no format.
"""

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

from tasks.foundation.errors import ConfigError, HangError, HostError

SDK_FOLDER = Path("/opt/aws/neuron/bin")  # installation folder of the packages; not on PATH in every image
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
    """A tool's output and exit code; `command` as typed in a shell."""

    command: str
    code: int
    stdout: str
    stderr: str

    @property
    def tail(self) -> str:
        """The last lines, for messages."""
        return tail(self.stderr if self.stderr.strip() else self.stdout)


def find_tool(name: str, path: str | None = None) -> str:
    """Return the executable of `name`, from `path` (default: PATH) or the package's installation folder.

    Raises:
        ConfigError: the tool is not installed; names its package.
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
def start_tool(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    merge: bool = False,
) -> Iterator[subprocess.Popen[str]]:
    """Start a tool with piped output (`merge`: stderr in stdout); after the block, end it and its children.

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
            start_new_session=True,  # the tools start child processes, which would outlive them
            encoding="utf-8",
        )
    except OSError as error:
        raise ConfigError(f"{command[0]} can't be started: {error}; install {_package(command[0])} again") from error
    with process:  # closes the pipes, after the end
        try:
            yield process
        finally:
            end_process(process)


def run_tool(
    name: str,
    *arguments: str,
    timeout_seconds: float,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> ToolOutput:
    """Run a tool to its end, with any exit status; None: environment and working folder of this process.

    Raises:
        ConfigError: the tool is not installed.
        HangError: the tool took longer than `timeout_seconds` and was ended.
    """
    written = shlex.join([name, *arguments])
    with start_tool([find_tool(name), *arguments], environment, folder) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout_seconds)
        except subprocess.TimeoutExpired as error:
            end_process(process)
            stdout = stderr = ""
            with contextlib.suppress(subprocess.TimeoutExpired):  # a child that left its session may hold the pipes
                stdout, stderr = process.communicate(timeout=GRACE_SECONDS)
            raise HangError(
                f"{written} did not end within {timeout_seconds:g} s; the driver or a device may be stuck (see "
                f"dmesg). Its last lines:\n{tail(stderr or stdout)}"
            ) from error
    return ToolOutput(written, process.returncode, stdout, stderr)


def parse_json(text: str, source: str) -> Any:
    """Parse the JSON of a tool.

    Raises:
        HostError: the JSON is missing or cut off; shows the text.
    """
    if not text.strip():
        raise HostError(f"{source} is empty")
    try:
        return json.loads(text)
    except ValueError as error:
        raise HostError(f"{source} is not JSON ({error}):\n{tail(text)}") from error


def explain(error: ValidationError) -> str:
    """Return `key: problem` for each undocumented key of a tool's output."""
    return "; ".join(f"{'.'.join(map(str, each['loc'])) or 'top level'}: {each['msg']}" for each in error.errors())


def tail(text: str, lines: int = TAIL_LINES) -> str:
    """Return the last non-empty lines."""
    written = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(written[-lines:]) or "(no output)"


def _package(executable: str) -> str:
    return PACKAGES.get(Path(executable).name, "it")


def end_process(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to a tool and its children, then SIGKILL after GRACE_SECONDS, also to orphaned children."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
