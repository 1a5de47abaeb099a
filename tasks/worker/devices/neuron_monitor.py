"""Utilisation and device memory of the NeuronCores of this machine, from `neuron-monitor`.

If the tool is missing, fails, or prints an unknown format, the log gets a warning and the numbers are absent.
"""

import contextlib
import statistics
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.contracts.usage import DeviceUse
from tasks.foundation.errors import CodeError, ConfigError, StageError
from tasks.worker.devices.neuron_tools import (
    GRACE_SECONDS,
    TAIL_LINES,
    end_process,
    explain,
    find_tool,
    parse_json,
    start_tool,
    tail,
)

GIB = 2**30


class Reading(NamedTuple):
    """One report: mean utilisation of the cores in use, in percent, and used device memory, in bytes."""

    utilization_percent: float
    memory_bytes: int


# The keys that are read; every release of the tool adds keys, and null means the same as absent.


class _Wire(BaseModel):
    model_config = ConfigDict(extra="ignore")


class _Core(_Wire):
    neuroncore_utilization: float


class _Cores(_Wire):
    neuroncores_in_use: dict[str, _Core] | None = None


class _Bytes(_Wire):
    neuron_device: int


class _Memory(_Wire):
    neuron_runtime_used_bytes: _Bytes | None = None


class _Groups(_Wire):
    neuroncore_counters: _Cores | None = None
    memory_used: _Memory | None = None


class _Process(_Wire):
    report: _Groups | None = None


class _Report(_Wire):
    neuron_runtime_data: tuple[_Process, ...] | None


def read_report(line: str) -> Reading | None:
    """Parse one line of the tool's output, all processes together; None if no core is in use.

    Raises:
        HostError: the line is not JSON.
        CodeError: the JSON differs from the documented format; names the key.
    """
    try:
        report = _Report.model_validate(parse_json(line, "the line of neuron-monitor"))
    except ValidationError as error:
        raise CodeError(f"neuron-monitor prints an unknown format: {explain(error)}") from error
    groups = [process.report for process in report.neuron_runtime_data or () if process.report is not None]
    counters = [group.neuroncore_counters.neuroncores_in_use or {} for group in groups if group.neuroncore_counters]
    cores = [core.neuroncore_utilization for each in counters for core in each.values()]
    memory = [group.memory_used.neuron_runtime_used_bytes for group in groups if group.memory_used]
    if not cores:
        return None
    return Reading(statistics.mean(cores), sum(used.neuron_device for used in memory if used is not None))


def summarize(node: int, readings: Sequence[Reading]) -> DeviceUse:
    """Return median and peak of the readings of one node, at least one."""
    utilization = [reading.utilization_percent for reading in readings]
    memory = [reading.memory_bytes / GIB for reading in readings]
    return DeviceUse(
        node=node,
        readings=len(readings),
        utilization_median=round(statistics.median(utilization), 2),
        utilization_peak=round(max(utilization), 2),
        memory_gib_median=round(statistics.median(memory), 3),
        memory_gib_peak=round(max(memory), 3),
    )


@contextlib.contextmanager
def run_monitor() -> Iterator[list[Reading]]:
    """Run neuron-monitor during the block and add each of its reports (every 5 s) to the list."""
    readings: list[Reading] = []
    with contextlib.ExitStack() as closing:
        try:
            process = closing.enter_context(start_tool([find_tool("neuron-monitor")], merge=True))
        except ConfigError as error:
            _warn(error)
        else:
            reader = threading.Thread(target=_read, args=(process, readings), name="neuron-monitor", daemon=True)
            reader.start()
            closing.callback(reader.join, GRACE_SECONDS)
            closing.callback(end_process, process)  # runs first, so that the reader reaches the end of the output
        yield readings


def _read(process: subprocess.Popen[str], readings: list[Reading]) -> None:
    """Read to the end of the output, even after a failure: a full pipe would block the tool."""
    assert process.stdout is not None
    last: deque[str] = deque(maxlen=TAIL_LINES)
    unknown: StageError | None = None
    for line in process.stdout:
        last.append(line)
        if line.startswith("{") and unknown is None:  # other lines are messages
            try:
                reading = read_report(line)
            except StageError as error:
                unknown = error
            else:
                readings += [reading] if reading is not None else []
    if unknown is not None or not readings:
        _warn(unknown or f"neuron-monitor reported no NeuronCore in use. Its last lines:\n{tail(''.join(last))}")


def _warn(why: object) -> None:
    print(f"warning: the use of the NeuronCores is not fully measured: {why}", flush=True)
