"""The speed of collectives between the NeuronCores of one machine, measured and verified by `nccom-test`.

Between machines the tool needs MPI over SSH, which a Batch job does not have: there only the workers' own check counts.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tasks.foundation.errors import CodeError, HostError
from tasks.foundation.records import Record
from tasks.worker.neuron.tools import ToolOutput, explain, parse_json, run_tool, tail

Operation = Literal["all_reduce", "all_gather", "reduce_scatter", "alltoall", "sendrecv", "permute"]
TIMEOUT_SECONDS = 600.0

_ERRORS = re.compile(r"(\d+) errors? found")
# These give a worker its share of the machine; the tool needs all cores of this machine, and only those.
_OF_ONE_WORKER = ("NEURON_RT_VISIBLE_CORES", "NEURON_RT_NUM_CORES", "NEURON_RT_ROOT_COMM_ID")


class WrongNumbers(HostError):
    """The cores of this machine exchange wrong numbers."""


class CollectiveSpeed(Record):
    """One operation at one size. A GB is 2**30 bytes here, as in the tool."""

    model_config = ConfigDict(extra="ignore", validate_by_name=True)

    bytes: int = Field(ge=0, validation_alias="size(B)")
    elements: int = Field(ge=0, validation_alias="count(elems)")
    type: str
    algorithm_gb_per_second: float = Field(ge=0, allow_inf_nan=False, validation_alias="algbw(GB/s)")
    bus_gb_per_second: float = Field(ge=0, allow_inf_nan=False, validation_alias="busbw(GB/s)")
    microseconds: float = Field(ge=0, allow_inf_nan=False, validation_alias="time:avg(us)")


class _Report(BaseModel):
    results: tuple[CollectiveSpeed, ...]


def measure(
    op: Operation, ranks: int, begin: int, end: int, factor: int = 4, timeout_seconds: float = TIMEOUT_SECONDS
) -> tuple[CollectiveSpeed, ...]:
    """Run `op` over `ranks` cores with random fp32 numbers, from `begin` to `end` bytes in steps of `factor`.

    Raises:
        ConfigError: nccom-test is not installed.
        HangError: it took longer than `timeout_seconds`.
        WrongNumbers: a result was wrong.
        HostError: nothing was measured.
        CodeError: its report has another format than the documented one; names the key.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-nccom-") as folder:
        report = Path(folder) / "report.json"
        output = run_tool(
            "nccom-test",
            *("-r", str(ranks), "-b", str(begin), "-e", str(end), "-f", str(factor), "-d", "fp32", "-c", "random"),
            *("--non-interactive", "--report-to-json-file", str(report), op),
            timeout_seconds=timeout_seconds,
            environment={name: value for name, value in os.environ.items() if name not in _OF_ONE_WORKER},
        )
        _refuse_errors(op, ranks, output)
        if not report.exists():
            raise HostError(
                f"nccom-test {op} over {ranks} ranks exited with {output.code} and wrote no report. Output:\n"
                f"{output.tail}"
            )
        return _read(report.read_text(errors="replace"), f"nccom-test {op} over {ranks} ranks", output)


def _refuse_errors(op: Operation, ranks: int, output: ToolOutput) -> None:
    """Read the text, which is documented, not the exit status, which is not."""
    counts = [int(count) for count in _ERRORS.findall(f"{output.stdout}\n{output.stderr}")]
    if any(counts):
        raise WrongNumbers(
            f"nccom-test {op} over {ranks} ranks: {max(counts)} errors found, test failed. The cores of this machine "
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
