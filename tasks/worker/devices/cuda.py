"""One NVIDIA GPU per process: NCCL between GPUs, bf16 autocast."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import ClassVar

import torch
from torch import nn

from tasks.foundation.errors import ConfigError
from tasks.worker.devices.ahead import FlatBatch, make_ahead, one_behind
from tasks.worker.devices.base import M, T
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
        self.device = self.ranking_device = torch.device("cuda", rank.local)
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

    def ahead(self, works: Iterable[T]) -> Iterator[T]:
        with contextlib.closing(make_ahead(works, lambda done: done)) as made:
            yield from made

    def fetch_behind(self, results: Iterable[tuple[T, torch.Tensor]]) -> Iterator[tuple[T, torch.Tensor]]:
        """Copy each result into pinned memory without waiting, and wait for its event once the next one is queued."""

        def start(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
            with torch.cuda.device(self.device):
                there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                there.copy_(tensor.detach(), non_blocking=True)
                copied = torch.cuda.Event()
                copied.record()

            def wait() -> torch.Tensor:
                copied.synchronize()
                return there

            return wait

        return one_behind((what, start(tensor)) for what, tensor in results)

    def free_memory_bytes(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0]

    def peak_memory_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)
