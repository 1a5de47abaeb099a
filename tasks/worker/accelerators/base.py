"""What training and inference ask of a device, and the part that is the same for every torch.distributed backend."""

from __future__ import annotations

import contextlib
import datetime as dt
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from tasks.worker.graphs import GraphWatch
from tasks.worker.job import Rank

Precision = Literal["bf16", "bf16-weights", "fp32"]
COLLECTIVE_TIMEOUT = dt.timedelta(minutes=10)


class Movable(Protocol):
    """Tensors that belong together and travel together."""

    def to(self, device: torch.device) -> Self: ...


M = TypeVar("M", bound=Movable)


class Accelerator(ABC):
    """One process's device and its way to the other workers' devices.

    A world of one needs no process group: every collective is then the identity. Collectives take tensors of the
    device and of the host alike; small numbers that a person or a decision waits for go by the host.
    """

    name: str
    backend: str
    device: torch.device
    graphs: GraphWatch | None = None  # what the device compiled; None where it runs each operation as it comes
    graph_folder: Path | None = None  # where this process's compiled graphs are
    reads_graphs = False  # whether compiled graphs that lie there need not be compiled again
    collects_only = False  # whether graphs are only collected here, not executed, so that all numbers are zeros
    compiler = ""  # name and version
    flags = ""  # what it was told
    adamw_options: ClassVar[dict[str, bool]] = {}  # which of torch's implementations of AdamW is the right one here

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

    def abandon(self) -> None:  # noqa: B027, most devices have nothing to clean up
        """Clean up after an error, without a word to the other workers. The process is to end."""

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

    def choose_precision(self, asked: Literal["auto", "bf16", "bf16-weights", "fp32"]) -> Precision:
        """`auto` is bf16 where that is fast."""
        if asked == "auto":
            return "bf16" if self.fast_bf16 else "fp32"
        return asked

    def autocast(self, precision: Precision) -> contextlib.AbstractContextManager[Any]:
        """Matrix products in bf16 inside the block; weights, sums and losses stay fp32."""
        if precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def round_to_bf16(self, values: torch.Tensor) -> torch.Tensor:
        """float32 -> bfloat16, up or down at random with the odds of the distance, so that small updates add up.

        The lower half of a float32's bits is what bfloat16 has no room for; a random number as long is added to it
        before it is cut off (Gupta et al. 2015, arXiv:1502.02551, section 3).
        """
        noise = torch.randint(0, 2**16, values.shape, dtype=torch.int32, device=values.device)
        return ((values.view(torch.int32) + noise) & -(2**16)).view(torch.float32).to(torch.bfloat16)

    def seed(self, value: int) -> None:
        """Begin the device's random numbers anew from here."""
        torch.manual_seed(value)

    # --- what compiled devices need, and the others let pass ------------------------------------------------------

    @property
    def variables(self) -> dict[str, str]:
        """What was set in the environment for the compiler and the runtime, to be recorded with the run."""
        return {}

    def doing(self, what: str) -> None:
        """Say what comes next, so that a graph which is compiled there can be told apart."""
        if self.graphs is not None:
            self.graphs.where = what

    def cut(self) -> None:  # noqa: B027, devices that run each operation as it comes have nothing to cut
        """End the graph that was traced so far, compile it if it is new, and start it."""

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor of the host on the device, as data, whatever its value."""
        return tensor.to(self.device)

    def scalar(self, value: float) -> float | torch.Tensor:
        """A number that changes from step to step, such that the graph does not change with it."""
        return value

    def settle(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:  # noqa: B027
        """Bring weights and optimiser state into the form that they have after a step, so that no step is special."""

    def feed(self, batches: Iterable[M]) -> Iterator[M]:
        """The batches on the device, in order, made and sent ahead where the device works on its own."""
        for batch in batches:
            yield batch.to(self.device)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy on the host; ends the graph."""
        return tensor.detach().cpu()

    def when_known(self, then: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> None:
        """Call `then` with the tensor on the host, at the latest at the next `cut`, without holding the device up."""
        then(tensor.detach().cpu())

    # --- collectives ----------------------------------------------------------------------------------------------

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """The elementwise sum over the workers, in place."""
        if self.rank.world > 1:
            self._all_reduce(tensor)
        return tensor

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """(b, ...) of each worker -> (world * b, ...) on every worker, in rank order; gradients flow back to all."""
        if self.rank.world == 1:
            return rows
        return _GatherRows.apply(rows, self)  # type: ignore[no-any-return]

    def scatter_sum(self, rows: torch.Tensor) -> torch.Tensor:
        """(world * b, ...) of each worker -> this worker's (b, ...) of the elementwise sum: a reduce-scatter."""
        if self.rank.world == 1:
            return rows
        return self._reduce_scatter(rows)

    def reduce_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Sum the gradients over the workers: each worker's loss is its part of the global batch's loss."""
        if self.rank.world == 1:
            return
        gradients = gradients_of(optimizer)
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        self._all_reduce(flat)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))

    def barrier(self) -> None:
        """Wait for every worker."""
        if self.rank.world > 1:
            dist.barrier()

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        dist.all_reduce(tensor)

    def _all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        parts = [torch.empty_like(rows) for _ in range(self.rank.world)]
        dist.all_gather(parts, rows)
        return torch.cat(parts)

    def _reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        summed = rows.contiguous().clone()
        self._all_reduce(summed)  # gloo has no reduce-scatter for every dtype; the sum is the same
        return summed.chunk(self.rank.world)[self.rank.index]


def gradients_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients that there are, in the order of the optimiser's parameters."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


class _GatherRows(torch.autograd.Function):
    """All-gather along the rows whose backward is a reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, accelerator: Accelerator) -> torch.Tensor:
        ctx.accelerator = accelerator
        return accelerator._all_gather(rows.detach().contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.accelerator._reduce_scatter(gradients[0].contiguous()), None
