"""All checks of one machine with Neuron devices, before workers take its cores.

A failing tool is a finding too, so that every worker of every machine gets it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from configs.schema.compute import MachineConfig
from tasks.contracts.outcomes import Action, Check
from tasks.foundation.errors import CodeError, ConfigError, StageError
from tasks.worker.devices.efa import check_interfaces, list_interfaces
from tasks.worker.devices.nccom import OPERATIONS, CollectiveSpeed, WrongResults, measure
from tasks.worker.devices.neuron_devices import check_devices, list_devices
from tasks.worker.devices.sysfs import check_ecc, read_counts

# From one packet to a size that shows the bandwidth; results are checked at every size.
NCCOM_BEGIN, NCCOM_END, NCCOM_FACTOR = 2**10, 2**28, 8


def check_node(machine: MachineConfig | None, sysfs: Path) -> tuple[Check, ...]:
    """Check devices, ECC counters, EFA interfaces, and the collectives between the cores of this machine.

    Args:
        machine: expected devices and speed; None: one device is enough, at any speed.
        sysfs: folder with a subfolder for each device.
    """
    checks, cores = _devices(machine)
    checks += check_ecc(read_counts(sysfs))
    if machine is not None and machine.efa_interfaces:
        checks.append(_interfaces(machine.efa_interfaces))
    if cores > 1:
        checks += _collectives(cores, machine.min_node_bus_gb_s if machine else 0.0)
    return tuple(checks)


def _devices(machine: MachineConfig | None) -> tuple[list[Check], int]:
    """Return the checks and the number of cores to test: 0 if a device check failed."""
    try:
        devices = list_devices()
    except StageError as error:
        return [_tool_failed("neuron devices", error)], 0
    checks = check_devices(devices, machine.devices if machine else None)
    fine = all(check.passed for check in checks)
    return [*checks], sum(device.nc_count for device in devices) if fine else 0


def _interfaces(expected: int) -> Check:
    try:
        return check_interfaces(list_interfaces(), expected)
    except StageError as error:
        return _tool_failed("efa interfaces", error)


def _collectives(cores: int, least: float) -> Iterator[Check]:
    """Yield a check of each operation; stop after a failure, whose cause would affect the others."""
    for operation in OPERATIONS:
        try:
            speeds = measure(operation, cores, NCCOM_BEGIN, NCCOM_END, NCCOM_FACTOR)
        except StageError as error:
            yield _tool_failed(_name(operation), error)
            return
        yield judge_nccom(operation, speeds, cores, least)


def _name(operation: str) -> str:
    return f"nccom {operation.replace('_', '-')}"


def judge_nccom(operation: str, speeds: Sequence[CollectiveSpeed], cores: int, least: float) -> Check:
    """Compare the best bus bandwidth over all sizes with the `least` expected, in GB/s.

    A slow machine gets only a warning, as no speeds in this test are published. Wrong results raised before.
    """
    best = max(speeds, key=lambda speed: speed.bus_gb_per_second)
    got, passed = best.bus_gb_per_second, best.bus_gb_per_second >= least
    sentence = (
        f"nccom-test {operation} over {cores} NeuronCores gives right numbers at {got:g} GB/s on the bus "
        f"({best.bytes / 2**20:g} MiB); at least {least:g} is expected"
    )
    if not passed:
        sentence += ". Something else uses the links, or one is degraded; if it stays, replace the machine"
    return Check(name=_name(operation), passed=passed, severity="warning", observed=got, sentence=sentence)


def _tool_failed(name: str, error: StageError) -> Check:
    """Return a failed check for a failed tool."""
    action: Action = "exclude host" if isinstance(error, WrongResults) else "retry elsewhere"
    if isinstance(error, ConfigError | CodeError):  # not installed or another release: the same on all machines
        action = "stop"
    return Check.critical(name, False, str(error), action)
