"""The processor as accelerator: gloo between processes, bf16 where the instruction set has it."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from tasks.worker.accelerators.base import Accelerator
from tasks.worker.job import Rank

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_MAX = -1, -2, -4  # malloc.h


class CpuAccelerator(Accelerator):
    """One process's share of the cores."""

    name = "cpu"
    backend = "gloo"
    adamw_options: ClassVar[dict[str, bool]] = {"fused": True}

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self.device = torch.device("cpu")
        _keep_freed_memory()

    def place(self, model: nn.Module) -> None:
        """Encoders get attention as plain matrix products, which is what a processor is fast at."""
        from tasks.worker.attention import use_matmul_attention  # seconds to import, and not every stage has a model

        super().place(model)
        use_matmul_attention(model)

    @property
    def fast_bf16(self) -> bool:
        """True where the processor multiplies bf16 itself (AMX or AVX-512 BF16); emulated bf16 is slower than fp32."""
        flags = _cpu_flags()
        return bool(flags & {"amx_bf16", "avx512_bf16", "bf16"})

    def synchronize(self) -> None:
        """Nothing runs behind our back on a CPU."""

    def free_memory_bytes(self) -> int:
        """This process's share of what the machine, or the container's limit, has left."""
        return free_host_bytes() // self.rank.local_world

    def peak_memory_bytes(self) -> int:
        return peak_host_bytes()


def peak_host_bytes() -> int:
    """The most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _keep_freed_memory() -> None:
    """Let the C library keep large freed blocks instead of handing each one back to the kernel.

    A training step allocates and frees the same tens of megabytes over and over; by default glibc maps and unmaps
    them, and the step pays for the page faults.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # glibc
        for parameter, value in ((M_MMAP_MAX, 0), (M_TRIM_THRESHOLD, 2**31 - 1), (M_TOP_PAD, 64 * 2**20)):
            libc.mallopt(parameter, value)


def free_host_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Memory that can be had without swapping. The page cache counts as free: the kernel gives it back."""
    try:
        fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except OSError:  # not Linux, which does not say what is free: the whole memory is the best that is known
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        cached = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(cached["inactive_file"]))
    except (OSError, ValueError):  # no container, or "max": no limit
        return free


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith(("flags", "Features"))), set())
