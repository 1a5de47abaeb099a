"""The device interface for training and inference, with the code common to all torch.distributed backends.

Devices report the graphs that they compile, and `GraphWatch` finds unexpected ones: the expected graphs come from the
manifest of the compile cache.
"""

import contextlib
import datetime as dt
import resource
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal, ParamSpec, Protocol, Self, TypeVar

import torch
import torch.distributed as dist
from torch import nn

from tasks.contracts.usage import GraphUse, NewGraph
from tasks.foundation.errors import CompileError
from tasks.foundation.process import free_host_bytes
from tasks.worker.devices.precompile import AheadCompiler
from tasks.worker.process.job import Rank

OnNewGraph = Literal["fail", "warn", "note"]


@dataclass(frozen=True)
class Graph:
    """One compiled graph: the runtime's hash, the work that first needed it, seconds to compile, bytes of its file."""

    name: str
    where: str
    seconds: float
    bytes: int


@dataclass
class GraphWatch:
    """Checks after each cut whether a graph was compiled.

    Attributes:
        counted: returns the number of compilations and their seconds since the process started.
        listed: returns the compiled graphs on disk, name -> bytes.
        where: the current work for messages, e.g. `step 12, 24 x 40 tokens`.
    """

    counted: Callable[[], tuple[int, float]]
    listed: Callable[[], dict[str, int]]
    where: str = "start"
    met: list[Graph] = field(default_factory=list)
    _there: frozenset[str] = frozenset()
    _count: int = 0
    _seconds: float = 0.0
    _silent: int = 0
    _expected: frozenset[str] | None = None
    _saved: float = 0.0
    _on_new: OnNewGraph = "warn"
    _new: list[NewGraph] = field(default_factory=list)

    def start(self) -> None:
        """Start to count; earlier compilations don't count."""
        self._there = frozenset(self.listed())
        self._count, self._seconds = self.counted()

    def forget(self) -> None:
        """Start again after work that does not belong to the stage."""
        self.poll()
        self.met, self._new, self._silent, self._expected = [], [], 0, None
        self.start()

    def expect(self, names: Collection[str], seconds: float, on_new: OnNewGraph) -> None:
        """Expect only these graphs from now on; they took `seconds` to compile."""
        self._expected, self._saved, self._on_new = frozenset(names), seconds, on_new
        for graph in self.met:
            self._judge(graph)

    def poll(self) -> None:
        """Record the compilations since the last call.

        Raises:
            CompileError: a graph is unexpected, and `expect` was called with `fail`.
        """
        count, seconds = self.counted()
        if count == self._count:
            return
        known = self._there | {graph.name for graph in self.met}
        fresh = {name: size for name, size in self.listed().items() if name not in known}
        self._silent += count - self._count - len(fresh)  # loaded from an earlier compilation: no new file
        each = (seconds - self._seconds) / (count - self._count)
        self._count, self._seconds = count, seconds
        for name, size in sorted(fresh.items()):
            graph = Graph(name, self.where, each, size)
            self.met.append(graph)
            self._judge(graph)

    def use(self, readable: bool) -> GraphUse:
        """Return the counts. `readable`: the runtime loads compiled graphs, so expected graphs saved time."""
        saved = max(0.0, self._saved - self._seconds) if readable else 0.0
        return GraphUse(
            # One compilation may make two files, forward and backward.
            hits=max(0, self._silent + len(self.met) - len(self._new)),
            misses=len(self._new),
            compile_seconds=round(self._seconds, 3),
            seconds_saved=round(saved, 3),
            readable=readable,
            compiled=tuple(graph.name for graph in self.met),
            new=tuple(self._new),
        )

    def _judge(self, graph: Graph) -> None:
        if self._expected is None or graph.name in self._expected:
            return
        self._new.append(NewGraph(name=graph.name, where=graph.where, seconds=round(graph.seconds, 3)))
        sentence = (
            f"{graph.where}: graph {graph.name} was compiled in {graph.seconds:.2f} s, but warmup did not "
            "compile it. The cause is a batch of another shape, or a setting that changed since"
        )
        if self._on_new == "fail":
            raise CompileError(f"{sentence}. Run the span again, or let it pass with --set train.on_new_graph=warn")
        if self._on_new == "warn":
            print(f"warning: {sentence}", flush=True)


def peak_host_bytes() -> int:
    """Return the peak memory of this process, in bytes."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


Precision = Literal["bf16", "bf16-weights", "fp32"]
COLLECTIVE_TIMEOUT = dt.timedelta(minutes=10)


class Movable(Protocol):
    """Tensors that move between devices together."""

    def to(self, device: torch.device) -> Self: ...


M = TypeVar("M", bound=Movable)
T = TypeVar("T")
P = ParamSpec("P")


class Accelerator(ABC):
    """The device of one process and its connection to the other workers' devices.

    A world of one needs no process group: every collective is the identity. Collectives accept tensors on the device
    and on the host; small numbers for logs and decisions stay on the host.
    """

    name: str
    backend: str
    device: torch.device
    graphs: GraphWatch | None = None  # compiled graphs; None for an eager device
    graph_folder: Path | None = None  # compiled graphs on disk
    reads_graphs = False  # the runtime loads compiled graphs from disk; the workers of a machine then share a folder
    ahead_compiler: AheadCompiler | None = None  # compiles before the device is opened; None: the trial run does
    collects_only = False  # graphs are collected or compiled, not executed: all numbers are zeros
    communicated_seconds: float | None = None  # in collectives so far; None: unknown, as they are part of a graph
    compiler = ""  # name and version
    flags = ""  # the compiler's flags
    unpadded = False  # supports unpadded texts, see encoder_layers.py
    ranking_device = torch.device("cpu")  # for searches and rankings: the host if each shape would have to be compiled
    adamw_options: ClassVar[dict[str, bool]] = {}  # choose torch's AdamW implementation

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def join(self) -> None:
        """Join the process group of the stage's workers, as torchrun's environment variables describe it."""
        if self.rank.world > 1:
            dist.init_process_group(self.backend, timeout=COLLECTIVE_TIMEOUT)

    def leave(self) -> None:
        """Leave the process group after every worker has finished its last collective.

        A worker that closes its connections may break the last barrier of a slower worker. So all wait in one more
        barrier, whose failure does not matter.
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
        """True if bf16 products are faster than fp32 products on this device."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device is idle; needed for correct timings."""

    def free_memory_bytes(self) -> int:
        """Return the free bytes for a model: of the host if the device does not report its own."""
        return free_host_bytes() // self.rank.local_world

    def peak_memory_bytes(self) -> int:
        """Return the peak bytes of this process: of the host if the device does not report its own."""
        return peak_host_bytes()

    def to_device(self, model: nn.Module) -> None:
        """Move a model to the device and choose the kernels that are fast there."""
        model.to(self.device)
        self.choose_attention(model)

    def choose_attention(self, model: nn.Module) -> None:
        """Set the attention of the encoders: plain matrix products, unless the device has a faster kernel."""
        from tasks.worker.devices.encoder_layers import MATMUL, use_attention  # seconds to import, not always needed

        use_attention(model, MATMUL)

    def choose_precision(self, requested: Literal["auto", "bf16", "bf16-weights", "fp32"]) -> Precision:
        """Return the precision to use; `auto` is bf16 if that is fast, else fp32."""
        if requested == "auto":
            return "bf16" if self.fast_bf16 else "fp32"
        return requested

    def autocast(self, precision: Precision) -> contextlib.AbstractContextManager[Any]:
        """Compute the encoder in bf16 inside the block; weights, heads and losses stay fp32."""
        if precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def round_to_bf16(self, values: torch.Tensor) -> torch.Tensor:
        """Round float32 to bfloat16 stochastically, in proportion to the distance, so that small updates add up.

        A random 16-bit number is added to the lower 16 bits of the float32 before they are cut off (Gupta et al. 2015,
        arXiv:1502.02551, section 3).
        """
        noise = torch.randint(0, 2**16, values.shape, dtype=torch.int32, device=values.device)
        return ((values.view(torch.int32) + noise) & -(2**16)).view(torch.float32).to(torch.bfloat16)

    def seed(self, value: int) -> None:
        """Seed the device's random numbers."""
        torch.manual_seed(value)

    # --- for compiled devices; eager devices do nothing ---------------------------------------------------------------

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of the compiler and the runtime, recorded with the run."""
        return {}

    def name_work(self, what: str) -> None:
        """Name the next work, for messages about a newly compiled graph."""
        if self.graphs is not None:
            self.graphs.where = what

    def compile(self, function: Callable[P, T]) -> Callable[P, T]:
        """Return the function as one graph, with its backward pass; eager and lazy devices return it as it is.

        The values of its arguments are data if they are tensors, and part of the graph if they are not.
        """
        return function

    def cut(self) -> None:  # noqa: B027, eager devices have nothing to cut
        """End the graph traced so far, compile it if it is new, and start it."""

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a host tensor to the device, as data and never as a constant."""
        return tensor.to(self.device)

    def scalar(self, value: float) -> float | torch.Tensor:
        """Return a per-step number in a form that does not change the graph."""
        return value

    def send(self, batch: M) -> M:
        """Return a batch on the device."""
        return batch.to(self.device)

    def settle(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:  # noqa: B027
        """Bring weights and optimiser state into their form after a step: all steps then share one graph."""

    def feed(self, batches: Iterable[M]) -> Iterator[M]:
        """Yield the batches on the device, in order; asynchronous devices prefetch them."""
        for batch in batches:
            yield self.send(batch)

    def ahead(self, works: Iterable[T]) -> Iterator[T]:
        """Yield the works in order; a thread does the next ones meanwhile if the device works beside the host."""
        return iter(works)

    def fetch_behind(self, results: Iterable[tuple[T, torch.Tensor]]) -> Iterator[tuple[T, torch.Tensor]]:
        """Yield each result with its tensor on the host, in order; the device may compute the next one meanwhile."""
        for what, tensor in results:
            yield what, self.fetch(tensor)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the host; ends the graph."""
        return tensor.detach().cpu()

    def when_known(self, then: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> None:
        """Call `then` with the tensor on the host, at the next `cut` at the latest; don't wait for it."""
        then(tensor.detach().cpu())

    # --- collectives ----------------------------------------------------------------------------------------------

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum elementwise over the workers, in place."""
        if self.rank.world > 1:
            self._all_reduce(tensor)
        return tensor

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """All-gather with gradients: (b, ...) of each worker -> (world * b, ...) on every worker, in rank order."""
        if self.rank.world == 1:
            return rows
        return _GatherRows.apply(rows, self)  # type: ignore[no-any-return]

    def scatter_sum(self, rows: torch.Tensor) -> torch.Tensor:
        """Reduce-scatter: (world * b, ...) of each worker -> this worker's (b, ...) of the elementwise sum."""
        if self.rank.world == 1:
            return rows
        return self._reduce_scatter(rows)

    def begin_backward(self, optimizer: torch.optim.Optimizer) -> None:  # noqa: B027, most devices sum at the end
        """Announce a backward pass after which all gradients are complete; `reduce_gradients` follows it."""

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

    def clip_gradients(self, model: nn.Module, most: float) -> torch.Tensor:
        """Scale all gradients so that their norm is at most `most`; return their norm before it, float32 ()."""
        return torch.nn.utils.clip_grad_norm_(model.parameters(), most)

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
        self._all_reduce(summed)  # gloo lacks reduce-scatter for some dtypes; the sum is the same
        return summed.chunk(self.rank.world)[self.rank.index]


def gradients_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """Return all gradients except None, in the order of the optimiser's parameters."""
    return [parameter.grad for parameter in parameters_of(optimizer) if parameter.grad is not None]


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups, in order."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


class _GatherRows(torch.autograd.Function):
    """All-gather along the rows; its backward pass is a reduce-scatter."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, accelerator: Accelerator) -> torch.Tensor:
        ctx.accelerator = accelerator
        return accelerator._all_gather(rows.detach().contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.accelerator._reduce_scatter(gradients[0].contiguous()), None
