"""All checks of one machine with Neuron devices, before workers take its cores.

Its devices are from `neuron-ls -j`, its EFA interfaces from libfabric's `fi_info -p efa`; a container sees only those
that are mapped into it. Uncorrected ECC errors are from the driver's counters in sysfs: it counts since it was loaded,
so an error may be older than this job; it is a fault nevertheless. `nccom-test` measures collectives between the cores;
between machines it needs MPI over SSH, which a Batch job lacks: there only the workers' own check counts. A failing
tool is a finding too, so that every worker of every machine gets it.
"""

import os
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from configs.schema.compute import MachineConfig
from tasks.contracts.outcomes import Action, Check
from tasks.contracts.usage import EfaUse
from tasks.foundation.errors import CodeError, ConfigError, HostError, StageError
from tasks.foundation.records import Record
from tasks.worker.devices.neuron_tools import ToolOutput, explain, parse_json, run_tool, tail

LIST_SECONDS = 60.0


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
    output = run_tool("neuron-ls", "-j", timeout_seconds=LIST_SECONDS)
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


EFA_ROOT = Path("/sys/class/infiniband")
SENT, RECEIVED = "tx_bytes", "rx_bytes"
FAULTS = (
    *("rx_drops", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events"),
    *("impaired_remote_conn_events", "rdma_read_wr_err", "rdma_write_wr_err"),
)
GIB = 2**30


def read_counters(root: Path | None = None) -> Counter[str]:
    """Return each counter summed over all interfaces below `root` (default: EFA_ROOT); unreadable files are skipped.

    `interfaces` counts the interfaces with byte counters.
    """
    found: Counter[str] = Counter()
    for folder in sorted((root or EFA_ROOT).glob("*/ports/1/hw_counters")):
        for name in (SENT, RECEIVED, *FAULTS):
            try:
                found[name] += int((folder / name).read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue
        found["interfaces"] += (folder / SENT).exists()
    return found


def compute_traffic(before: Mapping[str, int], after: Mapping[str, int]) -> EfaUse | None:
    """Return the traffic between two readings; None if no interface has byte counters."""
    if not after.get("interfaces"):
        return None
    moved = {name: after.get(name, 0) - before.get(name, 0) for name in (SENT, RECEIVED, *FAULTS)}
    return EfaUse(
        interfaces=after["interfaces"],
        sent_gib=round(moved[SENT] / GIB, 3),
        received_gib=round(moved[RECEIVED] / GIB, 3),
        faults={name: moved[name] for name in FAULTS if moved[name] > 0},
    )


INTERFACES_SECONDS = 60.0
_NONE = "no data available"  # fi_info's text if the provider has no interface
_KINDS = ("-rdm", "-dgrm")  # suffixes of the interface's name in a domain's name


def list_interfaces() -> tuple[str, ...]:
    """Return the names of the interfaces without repetition: the tool lists them per fabric and endpoint type.

    Raises:
        ConfigError: fi_info is not installed.
        HangError: fi_info does not answer.
        HostError: fi_info fails.
    """
    output = run_tool("fi_info", "-p", "efa", timeout_seconds=INTERFACES_SECONDS)
    found: dict[str, None] = {}
    provider = ""
    for line in output.stdout.splitlines():
        key, _, value = (word.strip() for word in line.partition(":"))
        if key == "provider":
            provider = value
        elif key == "domain" and provider.startswith("efa"):
            found[_interface(value)] = None
    if not found and output.code != 0 and _NONE not in f"{output.stdout}{output.stderr}".lower():
        raise HostError(f"{output.command} exited with {output.code}; is the EFA driver loaded? Output:\n{output.tail}")
    return tuple(found)


def check_interfaces(found: tuple[str, ...], expected: int) -> Check:
    """Check that at least `expected` interfaces were found."""
    passed = len(found) >= expected
    action: Action = "exclude host" if found else "stop"
    sentence = f"fi_info lists {len(found)} EFA interfaces ({', '.join(found) or 'none'}); {expected} are expected"
    if not passed and found:
        sentence += ". Map all of /dev/infiniband/uverbs* into the container; if they are mapped, replace the machine"
    elif not passed:
        sentence += (
            ". Map /dev/infiniband/uverbs* into the container, and start machines with EFA interfaces and its driver "
            "(health.machine says which kind this should be)"
        )
    return Check.critical("efa interfaces", passed, sentence, action, len(found))


def _interface(domain: str) -> str:
    for kind in _KINDS:
        domain = domain.removesuffix(kind)
    return domain


ECC_ROOT = Path("/sys/devices/virtual/neuron_device")
FATAL = {"mem_ecc_uncorrected": "device memory", "sram_ecc_uncorrected": "SRAM"}
REPAIRABLE = {"mem_ecc_repairable_uncorrected": "device memory"}

Counts = dict[str, dict[str, int]]  # device -> counter -> events


def read_counts(root: Path = ECC_ROOT) -> Counts:
    """Return the counters of each device; missing or malformed counters are skipped."""
    folders = sorted(root.glob("neuron[0-9]*"), key=lambda path: (len(path.name), path.name))
    return {folder.name: dict(_counters(folder)) for folder in folders}


def check_ecc(counts: Counts) -> tuple[Check, ...]:
    """Judge the counters: permanent errors exclude the machine, repairable errors don't, unread counters only warn."""
    return (
        _judge(
            "neuron ecc", counts, FATAL, "uncorrectable ECC errors", "exclude host",
            "What it computes can't be trusted: replace this machine",
        ),
        _judge(
            "neuron ecc repairable", counts, REPAIRABLE, "uncorrectable but repairable ECC errors", "retry elsewhere",
            "Reload the driver (rmmod neuron; modprobe neuron) or reboot this machine, which repairs them",
        ),
        _unread(counts),
    )  # fmt: skip


def _judge(name: str, counts: Counts, kinds: Mapping[str, str], what: str, action: Action, advice: str) -> Check:
    found = [
        (f"{met[counter]} in the {memory} of {device}", met[counter])
        for device, met in counts.items()
        for counter, memory in kinds.items()
        if met.get(counter)
    ]
    sentence = f"no {what}"
    if found:
        sentence = f"{what}: {', '.join(where for where, _ in found)}. {advice}"
    return Check.critical(name, not found, sentence, action, sum(count for _, count in found))


def _unread(counts: Counts) -> Check:
    """Return a check that warns about unreadable counters."""
    unread = [device for device, met in counts.items() if not met] if counts else ["any device"]
    sentence = f"the ECC counters of {len(counts)} devices were read"
    if unread:
        sentence = f"no ECC counters of {', '.join(unread)} below {ECC_ROOT}; is /sys mounted, and the driver recent?"
    return Check(
        name="neuron ecc counters",
        passed=not unread,
        severity="warning",
        observed=float(len(counts)),
        sentence=sentence,
    )


def _counters(folder: Path) -> Iterator[tuple[str, int]]:
    for name in (*FATAL, *REPAIRABLE):
        # In stats/hardware today, but drivers have moved nodes before; some counters are folders with a `total`.
        for path in sorted(folder.rglob(name)):
            try:
                yield name, int((path / "total" if path.is_dir() else path).read_text(encoding="utf-8"))
                break
            except (OSError, ValueError):
                continue


COLLECTIVES_SECONDS = 600.0
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
    operation: str, ranks: int, begin: int, end: int, factor: int, timeout_seconds: float = COLLECTIVES_SECONDS
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
