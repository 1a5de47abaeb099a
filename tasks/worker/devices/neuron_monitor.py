"""How busy the NeuronCores of this machine are, and how much device memory is in use, as `neuron-monitor` reports it.

It only measures: a tool that is missing, fails, or prints an unknown format gives a warning in the log and no numbers.
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
    started,
    tail,
)

GIB = 2**30


class Reading(NamedTuple):
    """One report: percent of time the cores computed, the mean of those in use; bytes of device memory in use."""

    utilization_percent: float
    memory_bytes: int


# The tool's format, as far as it is read; every release adds keys, and null and absent are the same.


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
    """Return what one line of the tool's output says about all processes together; None where no core is in use.

    Raises:
        HostError: it is not JSON.
        CodeError: its JSON has another format than the documented one; names the key.
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
    """Return median and peak of the readings of one node; there must be at least one."""
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
def monitored() -> Iterator[list[Reading]]:
    """Run neuron-monitor while the block runs, and add a reading to the list for each of its reports (every 5 s)."""
    readings: list[Reading] = []
    with contextlib.ExitStack() as closing:
        try:
            process = closing.enter_context(started([find_tool("neuron-monitor")], merge=True))
        except ConfigError as error:
            _warn(error)
        else:
            reader = threading.Thread(target=_read, args=(process, readings), name="neuron-monitor", daemon=True)
            reader.start()
            closing.callback(reader.join, GRACE_SECONDS)
            closing.callback(end_process, process)  # first, so that the reader comes to the end of the output
        yield readings


def _read(process: subprocess.Popen[str], readings: list[Reading]) -> None:
    """Read to the end of the output, also after a failure: the tool must not wait for a full pipe."""
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
