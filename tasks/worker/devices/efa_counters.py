"""What the EFA interfaces of this machine have moved, as their driver counts it in sysfs.

The names are those of drivers/infiniband/hw/efa/efa_verbs.c of Linux; older drivers have fewer of them.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from tasks.contracts.usage import EfaUse

ROOT = Path("/sys/class/infiniband")
SENT, RECEIVED = "tx_bytes", "rx_bytes"
FAULTS = (
    *("rx_drops", "retrans_pkts", "retrans_timeout_events", "unresponsive_remote_events"),
    *("impaired_remote_conn_events", "rdma_read_wr_err", "rdma_write_wr_err"),
)
GIB = 2**30


def read_counters(root: Path | None = None) -> Counter[str]:
    """Return each counter, summed over all interfaces below `root` (ROOT by default); what can't be read is left out.

    `interfaces` is the number of those that count bytes.
    """
    found: Counter[str] = Counter()
    for folder in sorted((root or ROOT).glob("*/ports/1/hw_counters")):
        for name in (SENT, RECEIVED, *FAULTS):
            try:
                found[name] += int((folder / name).read_text())
            except (OSError, ValueError):
                continue
        found["interfaces"] += (folder / SENT).exists()
    return found


def use_between(before: Mapping[str, int], after: Mapping[str, int]) -> EfaUse | None:
    """Return what was moved between two readings; None where no interface counts."""
    if not after.get("interfaces"):
        return None
    moved = {name: after.get(name, 0) - before.get(name, 0) for name in (SENT, RECEIVED, *FAULTS)}
    return EfaUse(
        interfaces=after["interfaces"],
        sent_gib=round(moved[SENT] / GIB, 3),
        received_gib=round(moved[RECEIVED] / GIB, 3),
        faults={name: moved[name] for name in FAULTS if moved[name] > 0},
    )
