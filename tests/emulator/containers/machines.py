"""The instance types that the template knows: their vCPUs and memory."""

from __future__ import annotations

from configs.instances import instances

# vCPUs and MiB.
SIZES = {"m7i.2xlarge": (8, 32 * 1024)} | {name: (row.vcpus, row.host_gib * 1024) for name, row in instances().items()}
MOST_OF_A_MACHINE = 0.93  # of its memory; the kernel, the agent and Batch's own reserve have the rest


def registered(machine: str) -> tuple[int, float]:
    """The vCPUs and MiB that an instance offers to containers."""
    vcpus, mib = SIZES[machine]
    return vcpus, mib * MOST_OF_A_MACHINE
