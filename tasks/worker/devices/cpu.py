"""The CPU as accelerator: gloo between processes, bf16 if the instruction set has it."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import torch
from torch import nn

from tasks.worker.devices.base import Accelerator
from tasks.worker.process.job import Rank
from tasks.worker.process.threads import forget_binding, keep_freed_memory


class CpuAccelerator(Accelerator):
    """One process's share of the cores."""

    name = "cpu"
    backend = "gloo"
    unpadded = True
    adamw_options: ClassVar[dict[str, bool]] = {"fused": True}

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        self.device = torch.device("cpu")
        self.communicated_seconds = 0.0
        keep_freed_memory()
        forget_binding()

    @property
    def fast_bf16(self) -> bool:
        """True if the CPU multiplies bf16 natively (AMX or AVX-512 BF16); emulated bf16 is slower than fp32."""
        flags = _cpu_flags()
        return bool(flags & {"amx_bf16", "avx512_bf16", "bf16"})

    def to_device(self, model: nn.Module) -> None:
        """Prepare the model; encoder layers of a supported kind run as one operation each."""
        super().to_device(model)
        from tasks.worker.devices.encoder_layers import use_fused_layers  # transformers takes seconds to import

        use_fused_layers(model)

    def synchronize(self) -> None:
        """Do nothing: a CPU runs no work in the background."""

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        with self._communicating():
            super()._all_reduce(tensor)

    def _all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        with self._communicating():
            return super()._all_gather(rows)

    @contextlib.contextmanager
    def _communicating(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.communicated_seconds = (self.communicated_seconds or 0.0) + time.perf_counter() - began


def _cpu_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return set()
    return next((set(line.split()) for line in lines if line.startswith(("flags", "Features"))), set())
