"""The Neuron devices of this machine, from `neuron-ls -j`, and their checks before training.

A container sees only devices that are mapped into it.
"""

from collections import Counter
from collections.abc import Sequence

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from tasks.contracts.outcomes import Action, Check
from tasks.foundation.errors import CodeError, HostError
from tasks.foundation.records import Record
from tasks.worker.devices.neuron_tools import explain, parse_json, run_tool

TIMEOUT_SECONDS = 60.0


class _Listed(Record):
    # Unlike our own records: every release of the tool adds keys.
    model_config = ConfigDict(extra="ignore", validate_by_name=True)


class NeuronProcess(_Listed):
    """A process that uses NeuronCores of a device."""

    pid: int
    command: str


class NeuronDevice(_Listed):
    number: int = Field(validation_alias="neuron_device")
    nc_count: int = Field(ge=1, description="NeuronCores: 2 on trn1; on trn2 logical ones")
    processes: tuple[NeuronProcess, ...] | None = Field(validation_alias="neuron_processes")


_DEVICES = TypeAdapter(tuple[NeuronDevice, ...])


def list_devices() -> tuple[NeuronDevice, ...]:
    """Return all devices, sorted by number.

    Raises:
        ConfigError: neuron-ls is not installed.
        HangError: neuron-ls does not answer.
        HostError: neuron-ls fails or does not print JSON.
        CodeError: the JSON differs from the documented format; names the key.
    """
    output = run_tool("neuron-ls", "-j", timeout_seconds=TIMEOUT_SECONDS)
    if output.code != 0:
        raise HostError(f"{output.command} exited with {output.code}; is the driver loaded? Output:\n{output.tail}")
    listed = parse_json(output.stdout, f"the output of {output.command}")
    if not isinstance(listed, list):
        raise CodeError(
            f"{output.command} printed something else than a list of devices:\n{output.stdout.strip()[:300]}\n"
            "From SDK 2.34 on it has another format; stay on an older aws-neuronx-tools"
        )
    try:
        devices = _DEVICES.validate_python(listed)
    except ValidationError as error:
        raise CodeError(f"{output.command} prints an unknown format: {explain(error)}") from error
    return tuple(sorted(devices, key=lambda device: device.number))


def check_devices(devices: Sequence[NeuronDevice], expected: int | None) -> tuple[Check, ...]:
    """Check that all devices are present, alike, and free. `expected` None: at least one device."""
    if not devices:
        return (_count(devices, expected),)
    return (_count(devices, expected), _alike(devices), _free(devices))


def _count(devices: Sequence[NeuronDevice], expected: int | None) -> Check:
    passed = bool(devices) if expected is None else len(devices) == expected
    wanted = "at least 1 is" if expected is None else f"{expected} are"
    sentence = f"neuron-ls lists {len(devices)} Neuron devices; {wanted} expected"
    # No devices, or too many: the machine or container differs from the configuration.
    action: Action = "exclude host" if 0 < len(devices) < (expected or 0) else "stop"
    if not passed and len(devices) > (expected or 0):
        sentence += ". Set health.machine to the kind of this machine, or add its kind to health.machines"
    elif not passed:
        missing = sorted(set(range(expected or 1)) - {device.number for device in devices})
        sentence += f"; missing: {', '.join(map(str, missing))}" if missing else ""
        sentence += ". Map all of /dev/neuron* into the container; if they are mapped, reboot or replace the machine"
    return Check.critical("neuron devices", passed, sentence, action, len(devices))


def _alike(devices: Sequence[NeuronDevice]) -> Check:
    usual, _ = Counter(device.nc_count for device in devices).most_common(1)[0]
    odd = [f"device {device.number} has {device.nc_count}" for device in devices if device.nc_count != usual]
    sentence = f"{usual} NeuronCores on every device"
    if odd:
        sentence = f"most devices have {usual} NeuronCores, but {', '.join(odd)}. Reboot or replace the machine"
    cores = sum(device.nc_count for device in devices)
    return Check.critical("neuron cores", not odd, sentence, "exclude host", cores)


def _free(devices: Sequence[NeuronDevice]) -> Check:
    found = [(process, device) for device in devices for process in device.processes or ()]
    holding = {process.pid: process for process, _ in found}
    held = {pid: [str(device.number) for process, device in found if process.pid == pid] for pid in holding}
    sentence = "no other process holds NeuronCores"
    if holding:
        holders = (
            f"process {pid} ({process.command}) on device {', '.join(held[pid])}" for pid, process in holding.items()
        )
        sentence = f"NeuronCores are held by {'; '.join(holders)}. Stop it, or wait for its end"
    return Check.critical("neuron processes", not holding, sentence, "retry elsewhere", len(holding))
