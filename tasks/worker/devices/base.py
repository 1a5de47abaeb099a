"""The interface of a device to training and inference, with what is the same for every torch.distributed backend."""

import contextlib
import datetime as dt
import os
import resource
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from tasks.worker.devices.graphs import GraphWatch
from tasks.worker.process.job import Rank


def peak_host_bytes() -> int:
    """Return the most memory that this process has held."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def free_host_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the memory available without swapping. The page cache counts as free: the kernel gives it back."""
    try:
        fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
        free = int(fields["MemAvailable"].split()[0]) * 1024
    except OSError:  # not Linux: only the whole memory is known
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        cached = dict(line.split() for line in (cgroup / "memory.stat").read_text().splitlines())
        return min(free, limit - used + int(cached["inactive_file"]))
    except (OSError, ValueError):  # no container, or "max": no limit
        return free


Precision = Literal["bf16", "bf16-weights", "fp32"]
COLLECTIVE_TIMEOUT = dt.timedelta(minutes=10)


class Movable(Protocol):
    """Tensors that move between devices together."""

    def to(self, device: torch.device) -> Self: ...


M = TypeVar("M", bound=Movable)


class Accelerator(ABC):
    """The device of one process, and its connection to the devices of the other workers.

    A world of one needs no process group: every collective is then the identity. Collectives take tensors on the
    device and on the host; small numbers that a log or a decision needs stay on the host.
    """

    name: str
    backend: str
    device: torch.device
    graphs: GraphWatch | None = None  # what the device compiled; None if it runs each operation at once
    graph_folder: Path | None = None  # where compiled graphs are
    reads_graphs = False  # whether the runtime reads compiled graphs back; then the workers of a machine share a folder
    collects_only = False  # whether graphs are collected and not executed: all numbers are zeros
    communicated_seconds: float | None = None  # in collectives so far; None: not known, as they are part of a graph
    compiler = ""  # name and version
    flags = ""  # the compiler's flags
    matmul_attention = True  # attention as plain matrix products; see attention.py
    in_line = False  # whether texts may come one after another, whatever their lengths; needs the above
    adamw_options: ClassVar[dict[str, bool]] = {}  # which of torch's AdamW implementations to use

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def join(self) -> None:
        """Join the process group of the stage's workers, by torchrun's environment variables."""
        if self.rank.world > 1:
            dist.init_process_group(self.backend, timeout=COLLECTIVE_TIMEOUT)

    def leave(self) -> None:
        """Leave the process group, once every worker has all that it waited for.

        A worker that closes its connections may break the last barrier of a slower one. So all wait once more, and
        whether that works out no longer matters.
        """
        if dist.is_initialized():
            with contextlib.suppress(RuntimeError):
                self._wait_for_all()
            dist.destroy_process_group()

    def abandon(self) -> None:  # noqa: B027, most devices have nothing to clean up
        """Clean up after an error without contacting the other workers; the process ends next."""

    @property
    @abstractmethod
    def fast_bf16(self) -> bool:
        """Whether bf16 products are faster than fp32 products on this device."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has finished all work; needed for correct timings."""

    def free_memory_bytes(self) -> int:
        """Return the memory that is free for a model: that of the host, where the device does not report its own."""
        return free_host_bytes() // self.rank.local_world

    def peak_memory_bytes(self) -> int:
        """Return the most memory that this process has held; of the host, if the device does not report its own."""
        return peak_host_bytes()

    def to_device(self, model: nn.Module) -> None:
        """Move a model to the device, with the kernels that are fast there."""
        model.to(self.device)
        if self.matmul_attention:
            from tasks.worker.devices.attention import use_matmul_attention  # seconds to import, not always needed

            use_matmul_attention(model)

    def choose_precision(self, requested: Literal["auto", "bf16", "bf16-weights", "fp32"]) -> Precision:
        """Return the precision to use; `auto` is bf16 where that is fast, else fp32."""
        if requested == "auto":
            return "bf16" if self.fast_bf16 else "fp32"
        return requested

    def autocast(self, precision: Precision) -> contextlib.AbstractContextManager[Any]:
        """Let the model compute its encoder in bf16 inside the block; weights, heads and losses stay fp32."""
        if precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def round_to_bf16(self, values: torch.Tensor) -> torch.Tensor:
        """Round float32 to bfloat16 stochastically, up or down in proportion to the distance: small updates add up.

        bfloat16 has no room for the lower 16 bits of a float32; a random 16-bit number is added to them before they
        are cut off (Gupta et al. 2015, arXiv:1502.02551, section 3).
        """
        noise = torch.randint(0, 2**16, values.shape, dtype=torch.int32, device=values.device)
        return ((values.view(torch.int32) + noise) & -(2**16)).view(torch.float32).to(torch.bfloat16)

    def seed(self, value: int) -> None:
        """Seed the random numbers of the device."""
        torch.manual_seed(value)

    # --- what compiled devices need; the other devices do nothing ---------------------------------------------------

    @property
    def variables(self) -> dict[str, str]:
        """Variables set for the compiler and the runtime, to be recorded with the run."""
        return {}

    def name_work(self, what: str) -> None:
        """Name the work that comes next, so that messages can say where a graph was compiled."""
        if self.graphs is not None:
            self.graphs.where = what

    def cut(self) -> None:  # noqa: B027, devices that run each operation at once have nothing to cut
        """End the graph traced so far, compile it if it is new, and start it."""

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a host tensor on the device, as data and never as a constant."""
        return tensor.to(self.device)

    def scalar(self, value: float) -> float | torch.Tensor:
        """Return a number that changes from step to step in a form that does not change the graph."""
        return value

    def settle(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:  # noqa: B027
        """Bring weights and optimiser state into their form after a step, so that all steps share one graph."""

    def feed(self, batches: Iterable[M]) -> Iterator[M]:
        """Yield the batches on the device, in order; a device that works asynchronously gets them ahead of time."""
        for batch in batches:
            yield batch.to(self.device)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host; ends the graph."""
        return tensor.detach().cpu()

    def when_known(self, then: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> None:
        """Call `then` with the tensor on the host, at the next `cut` at the latest; do not wait for it."""
        then(tensor.detach().cpu())

    # --- collectives ----------------------------------------------------------------------------------------------

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum elementwise over the workers, in place."""
        if self.rank.world > 1:
            self._all_reduce(tensor)
        return tensor

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """All-gather, with gradients: (b, ...) of each worker -> (world * b, ...) on every worker, in rank order."""
        if self.rank.world == 1:
            return rows
        return _GatherRows.apply(rows, self)  # type: ignore[no-any-return]

    def scatter_sum(self, rows: torch.Tensor) -> torch.Tensor:
        """Reduce-scatter: (world * b, ...) of each worker -> this worker's (b, ...) of the elementwise sum."""
        if self.rank.world == 1:
            return rows
        return self._reduce_scatter(rows)

    def reduce_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        """Sum the gradients over the workers: each worker's loss is its part of the loss of the global batch."""
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
            self._wait_for_all()

    def _wait_for_all(self) -> None:
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
    """Return the gradients that exist, in the order of the optimiser's parameters."""
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


class _GatherRows(torch.autograd.Function):
    """All-gather along the rows; its backward pass is a reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, accelerator: Accelerator) -> torch.Tensor:
        ctx.accelerator = accelerator
        return accelerator._all_gather(rows.detach().contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.accelerator._reduce_scatter(gradients[0].contiguous()), None
