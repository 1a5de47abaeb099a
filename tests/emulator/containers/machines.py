"""The instance types that the template knows: their vCPUs and memory."""

from __future__ import annotations

# vCPUs and MiB, by EC2's tables of instance types.
SIZES = {
    "m7i.2xlarge": (8, 32 * 1024),
    "trn1.2xlarge": (8, 32 * 1024),
    "trn1.32xlarge": (128, 512 * 1024),
    "trn1n.32xlarge": (128, 512 * 1024),
    "inf2.xlarge": (4, 16 * 1024),
    "inf2.8xlarge": (32, 128 * 1024),
    "inf2.24xlarge": (96, 384 * 1024),
    "inf2.48xlarge": (192, 768 * 1024),
    "g6e.12xlarge": (48, 384 * 1024),
    "p4d.24xlarge": (96, 1152 * 1024),
    "p5.48xlarge": (192, 2048 * 1024),
}
MOST_OF_A_MACHINE = 0.93  # of its memory; the kernel, the agent and Batch's own reserve have the rest


def registered(machine: str) -> tuple[int, float]:
    """The vCPUs and MiB that an instance offers to containers."""
    vcpus, mib = SIZES[machine]
    return vcpus, mib * MOST_OF_A_MACHINE
