"""The processor as accelerator: gloo between processes, bf16 where the instruction set has it."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import torch

from tasks.worker.accelerators.base import Accelerator
from tasks.worker.job import Rank


class CpuAccelerator(Accelerator):
    """One process's share of the cores."""

    name = "cpu"
    backend = "gloo"

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self.device = torch.device("cpu")

    @property
    def fast_bf16(self) -> bool:
        """True where the processor multiplies bf16 itself (AMX or AVX-512 BF16); emulated bf16 is slower than fp32."""
        flags = _cpu_flags()
        return bool(flags & {"amx_bf16", "avx512_bf16", "bf16"})

    def synchronize(self) -> None:
        """Nothing runs behind our back on a CPU."""

    def free_memory_bytes(self) -> int:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    def peak_memory_bytes(self) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith(("flags", "Features"))), set())
