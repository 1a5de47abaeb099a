"""The EFA network interfaces of this machine, from libfabric's `fi_info -p efa`.

A container sees only interfaces whose /dev/infiniband/uverbs* is mapped into it.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tasks.contracts.outcomes import Action, Check
from tasks.contracts.usage import EfaUse
from tasks.foundation.errors import HostError
from tasks.worker.devices.neuron_tools import run_tool

ROOT = Path("/sys/class/infiniband")
SENT, RECEIVED = "tx_bytes", "rx_bytes"
FAULTS = (
    *("rx_drops", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events"),
    *("impaired_remote_conn_events", "rdma_read_wr_err", "rdma_write_wr_err"),
)
GIB = 2**30


def read_counters(root: Path | None = None) -> Counter[str]:
    """Return each counter summed over all interfaces below `root` (default: ROOT); unreadable files are skipped.

    `interfaces` counts the interfaces with byte counters.
    """
    found: Counter[str] = Counter()
    for folder in sorted((root or ROOT).glob("*/ports/1/hw_counters")):
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


TIMEOUT_SECONDS = 60.0
_NONE = "no data available"  # fi_info's text if the provider has no interface
_KINDS = ("-rdm", "-dgrm")  # suffixes of the interface's name in a domain's name


def list_interfaces() -> tuple[str, ...]:
    """Return the names of the interfaces without repetition: the tool lists them per fabric and endpoint type.

    Raises:
        ConfigError: fi_info is not installed.
        HangError: fi_info does not answer.
        HostError: fi_info fails.
    """
    output = run_tool("fi_info", "-p", "efa", timeout_seconds=TIMEOUT_SECONDS)
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
