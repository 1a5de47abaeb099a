"""One NVIDIA GPU per process: NCCL between GPUs, bf16 autocast."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import ClassVar

import torch
from torch import nn

from tasks.foundation.errors import ConfigError
from tasks.worker.devices.ahead import FlatBatch, make_ahead
from tasks.worker.devices.base import M
from tasks.worker.devices.gradient_buckets import OverlappedGradients
from tasks.worker.process.job import Rank


class CudaAccelerator(OverlappedGradients):
    """The GPU whose number is the local rank."""

    name = "cuda"
    backend = "cpu:gloo,cuda:nccl"
    adamw_options: ClassVar[dict[str, bool]] = {"fused": True}

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        found = torch.cuda.device_count()
        if rank.local >= found:
            raise ConfigError(
                f"accelerator: cuda needs a GPU for each worker; this machine has {found}. "
                "Lower train.workers or set accelerator: cpu"
            )
        self.device = torch.device("cuda", rank.local)
        torch.cuda.set_device(self.device)

    @property
    def fast_bf16(self) -> bool:
        return torch.cuda.is_bf16_supported(including_emulation=False)

    def choose_attention(self, model: nn.Module) -> None:
        """Set the attention that knows packed texts by their lengths."""
        from tasks.worker.devices.attention import use_attention  # transformers takes seconds to import
        from tasks.worker.devices.varlen_attention import VARLEN

        use_attention(model, VARLEN)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def feed(self, batches: Iterable[M]) -> Iterator[M]:
        """Make batches in a thread, in pinned memory, and copy each to the GPU without waiting for it."""

        def pinned(batch: M) -> FlatBatch:
            with torch.cuda.device(self.device):  # each thread has its own current GPU
                return FlatBatch.of(batch, pinned=True)

        with contextlib.closing(make_ahead(batches, pinned)) as made:
            for batch in made:
                yield batch.to(self.device)

    def free_memory_bytes(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0]

    def peak_memory_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)
