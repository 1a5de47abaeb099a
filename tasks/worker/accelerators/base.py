"""What training and inference ask of a device, and the part that is the same for every torch.distributed backend."""

from __future__ import annotations

import contextlib
import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn

from tasks.worker.job import Rank

Precision = Literal["bf16", "fp32"]
COLLECTIVE_TIMEOUT = dt.timedelta(minutes=10)


class Accelerator(ABC):
    """One process's device and its way to the other workers' devices.

    A world of one needs no process group: every collective is then the identity.
    """

    name: str
    backend: str
    device: torch.device

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def join(self) -> None:
        """Enter the process group of the stage's workers, by torchrun's environment variables."""
        if self.rank.world > 1:
            dist.init_process_group(self.backend, timeout=COLLECTIVE_TIMEOUT)

    def leave(self) -> None:
        """Leave the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()

    @property
    @abstractmethod
    def fast_bf16(self) -> bool:
        """Whether bf16 products are faster here than fp32 ones."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it; timings are wrong without."""

    @abstractmethod
    def free_memory_bytes(self) -> int:
        """Memory that a model could still take."""

    @abstractmethod
    def peak_memory_bytes(self) -> int:
        """The most that this process has held so far."""

    def place(self, model: nn.Module) -> None:
        """Put a model on the device, with the kernels that are fast there."""
        model.to(self.device)

    def choose_precision(self, asked: Literal["auto", "bf16", "fp32"]) -> Precision:
        """`auto` is bf16 where that is fast."""
        if asked == "auto":
            return "bf16" if self.fast_bf16 else "fp32"
        return asked

    def autocast(self, precision: Precision) -> contextlib.AbstractContextManager[Any]:
        """Matrix products in bf16 inside the block; weights, sums and losses stay fp32."""
        if precision == "fp32":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The elementwise sum over the workers, in place."""
        if self.rank.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """(b, ...) of each worker -> (world * b, ...) on every worker, in rank order; gradients flow back to all."""
        if self.rank.world == 1:
            return rows
        return _GatherRows.apply(rows, self.rank)  # type: ignore[no-any-return]

    def scatter_sum(self, rows: torch.Tensor) -> torch.Tensor:
        """(world * b, ...) of each worker -> this worker's (b, ...) of the elementwise sum: a reduce-scatter."""
        if self.rank.world == 1:
            return rows
        summed = rows.clone()
        dist.all_reduce(summed)  # gloo has no reduce-scatter for every dtype; the sum is the same
        return summed.chunk(self.rank.world)[self.rank.index]

    def reduce_gradients(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Sum the gradients over the workers: each worker's loss is its part of the global batch's loss."""
        if self.rank.world == 1:
            return
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def barrier(self) -> None:
        """Wait for every worker."""
        if self.rank.world > 1:
            dist.barrier()


class _GatherRows(torch.autograd.Function):
    """All-gather along the rows whose backward is a reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, rank: Rank) -> torch.Tensor:
        ctx.rank = rank
        rows = rows.contiguous()
        parts = [torch.empty_like(rows) for _ in range(rank.world)]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        summed = gradients[0].contiguous().clone()
        dist.all_reduce(summed)
        return summed.chunk(ctx.rank.world)[ctx.rank.index], None
