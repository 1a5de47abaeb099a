"""Speed and correctness of collectives between the NeuronCores of one machine, by `nccom-test`.

Between machines the tool needs MPI over SSH, which a Batch job lacks: there only the workers' own check counts.
"""

import os
import re
import tempfile
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.foundation.errors import CodeError, ConfigError, HostError
from tasks.foundation.records import Record
from tasks.worker.devices.neuron_tools import ToolOutput, explain, parse_json, run_tool, tail

TIMEOUT_SECONDS = 600.0
OPERATIONS = ("all_reduce", "all_gather", "reduce_scatter")  # as in a training step, by the tool's names

_ERRORS = re.compile(r"(\d+) errors? found")
# The tool also counts a size that it could not run as an error; the reason is in a separate log.
_NOT_RUN = re.compile(r"Failure running \S+(?: - log file (\S+))?")
_NO_PERMISSION = re.compile(r"permission denied|operation not permitted", re.I)
# These limit a worker to its share of the machine; the tool needs all cores of this machine and no others.
_OF_ONE_WORKER = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "NEURON_RT_ROOT_COMM_ID")


class WrongResults(HostError):
    """The cores of this machine exchange wrong numbers."""


class CollectiveSpeed(Record):
    """One operation at one size. A GB is 2**30 bytes here, as in the tool."""

    model_config = ConfigDict(extra="ignore", validate_by_name=True)

    bytes: int = Field(ge=0, validation_alias="size(B)")
    bus_gb_per_second: float = Field(ge=0, allow_inf_nan=False, validation_alias="busbw(GB/s)")


class _Report(BaseModel):
    results: tuple[CollectiveSpeed, ...]


def measure(
    operation: str, ranks: int, begin: int, end: int, factor: int, timeout_seconds: float = TIMEOUT_SECONDS
) -> tuple[CollectiveSpeed, ...]:
    """Run an operation over `ranks` cores on random fp32 numbers, from `begin` to `end` bytes, growing by `factor`.

    Raises:
        ConfigError: nccom-test is not installed, or may not open the devices.
        HangError: the test took longer than `timeout_seconds`.
        WrongNumbers: a result was wrong.
        HostError: nothing was measured, e.g. because another process holds a core.
        CodeError: the report differs from the documented format; names the key.
    """
    what = f"nccom-test {operation} over {ranks} ranks"
    with tempfile.TemporaryDirectory(prefix="millrace-nccom-") as folder:
        report = Path(folder) / "report.json"
        output = run_tool(
            "nccom-test",
            *("-r", str(ranks), "-b", str(begin), "-e", str(end), "-f", str(factor), "-d", "fp32", "-c", "random"),
            *("--non-interactive", "--report-to-json-file", str(report), operation),
            timeout_seconds=timeout_seconds,
            environment={name: value for name, value in os.environ.items() if name not in _OF_ONE_WORKER},
            folder=Path(folder),  # the tool writes to its working directory
        )
        _refuse_errors(what, output)
        if not report.exists():
            raise HostError(f"{what} exited with {output.code} and wrote no report. Output:\n{output.tail}")
        return _read(report.read_text(errors="replace", encoding="utf-8"), what, output)


def _refuse_errors(what: str, output: ToolOutput) -> None:
    """Raise for errors in the text, which is documented, unlike the exit status."""
    text = f"{output.stdout}\n{output.stderr}"
    if found := _NOT_RUN.search(text):
        log = (
            Path(found[1]).read_text(errors="replace", encoding="utf-8")
            if found[1] and Path(found[1]).is_file()
            else ""
        )
        said = f"{what} could not run, so nothing is known of the links. Its last lines:\n{tail(log or text)}"
        if _NO_PERMISSION.search(log or text):
            raise ConfigError(f"{said}\nGive WorkerUser's group /dev/neuron* (infra/aws/ami.sh), or map them all")
        raise HostError(said)
    counts = [int(count) for count in _ERRORS.findall(text)]
    if any(counts):
        raise WrongResults(
            f"{what}: {max(counts)} errors found, test failed. The cores of this machine "
            f"exchange wrong numbers; replace it. Output:\n{tail(output.stdout)}"
        )


def _read(text: str, what: str, output: ToolOutput) -> tuple[CollectiveSpeed, ...]:
    try:
        results = _Report.model_validate(parse_json(text, f"the report of {what}")).results
    except ValidationError as error:
        raise CodeError(f"the report of {what} has an unknown format: {explain(error)}") from error
    if not results:
        raise HostError(f"{what} measured nothing (exit status {output.code}). Output:\n{output.tail}")
    return results
