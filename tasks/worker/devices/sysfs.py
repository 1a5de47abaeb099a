"""Uncorrected ECC errors of this machine's devices, from the driver's counters in sysfs.

The driver counts since it was loaded, so an error may be older than this job; it is a fault nevertheless.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tasks.contracts.outcomes import Action, Check

ROOT = Path("/sys/devices/virtual/neuron_device")
FATAL = {"mem_ecc_uncorrected": "device memory", "sram_ecc_uncorrected": "SRAM"}
REPAIRABLE = {"mem_ecc_repairable_uncorrected": "device memory"}

Counts = dict[str, dict[str, int]]  # device -> counter -> events


def read_counts(root: Path = ROOT) -> Counts:
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
        sentence = f"no ECC counters of {', '.join(unread)} below {ROOT}; is /sys mounted, and the driver recent?"
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
