"""One report of `neuron-monitor`: errors and latency of the running programs, ECC counters, hardware.

A snapshot for the health checks, not a stream for dashboards.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import subprocess
import time
from collections.abc import Iterator
from typing import Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from configs.schema import Severity
from tasks.contracts import Check
from tasks.errors import CodeError, HangError, HostError
from tasks.records import Record
from tasks.worker.neuron.tools import explain, find_tool, parse_json, started, tail

TIMEOUT_SECONDS = 30.0  # the first report comes after one period of 5 s


class _Reported(Record):
    # Unlike in our own records: every release of the tool adds keys.
    model_config = ConfigDict(extra="ignore", validate_by_name=True)


class ExecutionErrors(_Reported):
    """Errors in the period of the report, by kind."""

    generic: int
    numerical: int = Field(validation_alias=AliasChoices("numerical", "numeric"))
    transient: int = Field(description="recovered from, such as corrected ECC")
    model: int
    runtime: int
    hardware: int


class Latency(_Reported):
    """Seconds of an execution as the runtime sees it."""

    p50: float
    p99: float


class Executions(Record):
    """What ran in the period of the report; no latency where nothing did."""

    errors: ExecutionErrors
    completed: int
    completed_with_err: int
    timed_out: int
    latency: Latency | None


class Runtime(Record):
    """One process that uses NeuronCores."""

    pid: int
    tag: str
    error: str
    executions: Executions | None


class EccCounters(_Reported):
    """ECC events of one device since its driver was loaded."""

    device: int = Field(validation_alias="neuron_device_index")
    mem_corrected: int = Field(validation_alias="mem_ecc_corrected")
    mem_uncorrected: int = Field(validation_alias="mem_ecc_uncorrected")
    sram_corrected: int = Field(validation_alias="sram_ecc_corrected")
    sram_uncorrected: int = Field(validation_alias="sram_ecc_uncorrected")


class Hardware(_Reported):
    """The devices, all alike. With an `error` the rest may say nothing."""

    device_type: str = Field(default="", validation_alias="neuron_device_type")
    devices: int = Field(default=0, validation_alias="neuron_device_count")
    memory_bytes: int = Field(default=0, validation_alias="neuron_device_memory_size", description="of one device")
    cores_per_device: int = Field(default=0, validation_alias="neuroncore_per_device_count")
    error: str = ""


class MonitorReport(Record):
    """`ecc` and `hardware` are None where the report has no such section; `errors` are those of sections, by path."""

    runtimes: tuple[Runtime, ...]
    ecc: tuple[EccCounters, ...] | None
    hardware: Hardware | None
    errors: dict[str, str]


# The shape on the wire; null and absent are the same there.


class _Wire(BaseModel):
    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class _Summary(_Wire):
    completed: int
    completed_with_err: int
    timed_out: int


class _Latencies(_Wire):
    total_latency: Latency | None = None


class _Stats(_Wire):
    error_summary: ExecutionErrors | None = None
    execution_summary: _Summary | None = None
    latency_stats: _Latencies | None = None


class _Groups(_Wire):
    execution_stats: _Stats | None = None


class _RuntimeData(_Wire):
    pid: int
    neuron_runtime_tag: str = ""
    error: str = ""
    report: _Groups | None = None


class _Counters(_Wire):
    neuron_devices: tuple[EccCounters, ...] | None = None


class _System(_Wire):
    neuron_hw_counters: _Counters | None = None


class _Line(_Wire):
    neuron_runtime_data: tuple[_RuntimeData, ...] | None
    system_data: _System | None = None
    neuron_hardware_info: Hardware | None = None


def read_report(line: str) -> MonitorReport:
    """One line of the tool's output.

    Raises:
        HostError: it is no JSON.
        CodeError: its JSON has another shape than the one documented; names the key.
    """
    tree = parse_json(line, "the line of neuron-monitor")
    try:
        wire = _Line.model_validate(tree)
    except ValidationError as error:
        raise CodeError(f"neuron-monitor prints another format than is known here: {explain(error)}") from error
    counters = wire.system_data and wire.system_data.neuron_hw_counters
    return MonitorReport(
        runtimes=tuple(_runtime(data) for data in wire.neuron_runtime_data or ()),
        ecc=counters.neuron_devices if counters else None,
        hardware=wire.neuron_hardware_info,
        errors=dict(_errors(tree)),
    )


def sample(timeout_seconds: float = TIMEOUT_SECONDS) -> MonitorReport:
    """Start the tool, read its first report, and end it.

    Raises:
        ConfigError: it is not installed.
        HangError: no report came within `timeout_seconds`.
        HostError: it ended without one.
        CodeError: its reports have another shape than the one documented.
    """
    said: list[str] = []
    unknown: CodeError | None = None
    deadline = time.monotonic() + timeout_seconds
    with started([find_tool("neuron-monitor")], merge=True) as process:
        for line in _lines(process, deadline):
            said.append(line)
            if not line.startswith("{"):  # a message, not a report
                continue
            try:
                return read_report(line)
            except HostError:  # cut off
                continue
            except CodeError as error:
                unknown = error
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
        ended = process.returncode
    if unknown is not None:
        raise unknown
    last = tail("\n".join(said))
    if ended is None:
        raise HangError(f"neuron-monitor gave no report within {timeout_seconds:g} s. Its last lines:\n{last}")
    raise HostError(f"neuron-monitor ended with {ended} before its first report. Its last lines:\n{last}")


def check_report(report: MonitorReport) -> tuple[Check, ...]:
    """Broken hardware is critical; memory that still corrects itself, and what could not be read, is a warning."""
    return (
        _hardware(report),
        _executions(report),
        _ecc(report, "uncorrected", "critical", "Results can't be trusted; replace this machine"),
        _ecc(report, "corrected", "warning", "Harmless while they are few; if they grow, replace this machine"),
        _unread(report),
    )


def _hardware(report: MonitorReport) -> Check:
    error = report.hardware.error if report.hardware else ""
    sentence = "neuron-monitor reaches the hardware"
    if error:
        sentence = f"neuron-monitor does not reach the hardware: {error}. Load the driver, or replace this machine"
    return _check("neuron hardware", not error, "critical", float(bool(error)), sentence)


def _executions(report: MonitorReport) -> Check:
    met = {runtime.pid: runtime.executions.errors.hardware for runtime in report.runtimes if runtime.executions}
    met = {pid: count for pid, count in met.items() if count}
    sentence = "no execution met a hardware error"
    if met:
        who = ", ".join(f"{count} of process {pid}" for pid, count in met.items())
        sentence = f"executions met hardware errors: {who}. Replace this machine"
    return _check("neuron executions", not met, "critical", sum(met.values()), sentence)


def _ecc(report: MonitorReport, kind: Literal["corrected", "uncorrected"], severity: Severity, advice: str) -> Check:
    counts = {
        f"{name} of device {each.device}": getattr(each, f"{memory}_{kind}")
        for each in report.ecc or ()
        for memory, name in (("mem", "memory"), ("sram", "SRAM"))
    }
    counts = {where: count for where, count in counts.items() if count}
    sentence = f"no {kind} ECC events"
    if counts:
        where = ", ".join(f"{count} in the {where}" for where, count in counts.items())
        sentence = f"{kind} ECC events: {where}. {advice}"
    return _check(f"neuron ecc {kind}", not counts, severity, sum(counts.values()), sentence)


def _unread(report: MonitorReport) -> Check:
    """What the monitor could not tell: that proves no fault, and no health."""
    unread = [f"process {runtime.pid}: {runtime.error}" for runtime in report.runtimes if runtime.error]
    unread += [f"{section}: {error}" for section, error in report.errors.items()]
    unread += [] if report.ecc is not None else ["no ECC counters"]
    unread += [] if report.hardware is not None else ["no neuron_hardware_info"]
    sentence = f"neuron-monitor could not tell everything: {'; '.join(unread)}" if unread else "nothing was left unread"
    return _check("neuron monitor", not unread, "warning", len(unread), sentence)


def _check(name: str, passed: bool, severity: Severity, observed: float, sentence: str) -> Check:
    return Check(name=name, passed=passed, severity=severity, observed=float(observed), sentence=sentence)


def _runtime(data: _RuntimeData) -> Runtime:
    stats = data.report.execution_stats if data.report else None
    executions = None
    if stats and stats.error_summary and stats.execution_summary:
        summary = stats.execution_summary
        executions = Executions(
            errors=stats.error_summary,
            completed=summary.completed,
            completed_with_err=summary.completed_with_err,
            timed_out=summary.timed_out,
            latency=stats.latency_stats.total_latency if stats.latency_stats else None,
        )
    return Runtime(pid=data.pid, tag=data.neuron_runtime_tag, error=data.error, executions=executions)


def _errors(tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The `error` of each metric group, with its path; that of instance_info says nothing about health."""
    groups = {f"process {data['pid']}": data.get("report") for data in tree["neuron_runtime_data"] or ()}
    for owner, sections in {**groups, "system_data": tree.get("system_data")}.items():
        for name, section in (sections or {}).items():
            if isinstance(section, dict) and section.get("error"):
                yield f"{owner}: {name}", str(section["error"])


def _lines(process: subprocess.Popen[str], deadline: float) -> Iterator[str]:
    """The lines of the merged output, until the deadline or its end."""
    assert process.stdout is not None
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            chunk = os.read(process.stdout.fileno(), 2**16)
            if not chunk:
                break
            *lines, pending = (pending + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
    yield pending.decode(errors="replace")
