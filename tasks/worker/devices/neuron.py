"""NeuronCores through TorchNeuron: native PyTorch on Trn2 and Trn3, with `torch.compile`.

The functions of a step are compiled whole, each with its backward pass; a break, or a shape that varies, is an error.
Graphs take and hold no 64-bit integers of ours: ids are sent as int32. TorchNeuron keeps compiled graphs in a folder,
so warmup fills it, in compile-only mode, and training reads it; `GraphWatch` checks that. Import this file after
`prepare_environment`.
"""

import contextlib
import importlib
import importlib.metadata
import importlib.util
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._dynamo.utils import compilation_time_metrics, counters
from torch.distributed import _functional_collectives as traced

from configs.schema.config import Config
from tasks.foundation.errors import ConfigError
from tasks.worker.devices.ahead import make_ahead, replace_tensors
from tasks.worker.devices.base import Accelerator, GraphWatch, M, P, T
from tasks.worker.devices.compile_only import COMPILE_ONLY, SWITCH, list_neffs
from tasks.worker.devices.xla_environment import NEURON_FLAGS, checked_flags, folder_of_machine
from tasks.worker.process.job import Rank
from tasks.worker.process.machine import SharedFolder

PACKAGE = "torch-neuronx"
OLDEST = (2, 13)  # releases before it are PyTorch/XLA, under the same name
TARGETS = ("trn2", "trn3")
NEFF_CACHE, LOCAL_CACHE = "TORCH_NEURONX_NEFF_CACHE_DIR", "TORCH_NEURONX_NEFF_LOCAL_CACHE_DIR"
FALLBACK = "TORCH_NEURONX_DISABLE_FALLBACK_EXECUTION"
PLATFORM = "NEURON_PLATFORM_TARGET_OVERRIDE"
MOST_VARIANTS = 64  # graphs of one function, by model, precision, mode and shape; Dynamo's own limit is 8
_EFA = {"FI_PROVIDER": "efa", "FI_EFA_USE_DEVICE_RDMA": "1", "FI_EFA_FORK_SAFE": "1"}


@dataclass(frozen=True)
class NeuronEnvironment:
    """The folder of compiled graphs, all variables set here, and name, version and flags of the compiler."""

    cache: Path
    variables: dict[str, str]
    compiler: str
    flags: str


def prepare_environment(config: Config | None, precision: str, rank: Rank) -> NeuronEnvironment:
    """Set the variables, import TorchNeuron, and return them. Without `config` the compiler's defaults apply.

    Raises:
        ConfigError: TorchNeuron is not installed, or does not run on `compiler.target`; or the flags conflict with the
            precision or the environment.
    """
    version = _version()
    cache = _inherited_cache() if is_compile_only() else folder_of_machine(rank)
    variables = {
        NEFF_CACHE: str(cache),
        LOCAL_CACHE: str(cache.with_name(f"{cache.name}-local")),  # another run's graphs would not be counted
        FALLBACK: "1",
    }
    if config is not None:
        variables |= _settings(config, precision, rank.world > rank.local_world)
        if is_compile_only():
            variables[PLATFORM] = config.compiler.target  # it opens no device that could say so
    os.environ.update(variables)
    importlib.import_module("torch_neuronx")  # registers the device, the compiler and the backend of collectives
    compiler = f"{PACKAGE} {version}, torch {torch.__version__}"
    return NeuronEnvironment(cache, variables, compiler, variables.get(NEURON_FLAGS, ""))


def is_compile_only() -> bool:
    """Return True in a trial run whose graphs are compiled, into the folder of the process that started it."""
    return os.environ.get(SWITCH) == "1"


def _inherited_cache() -> Path:
    if NEFF_CACHE not in os.environ:
        raise ConfigError(
            f"{SWITCH} is 1 in the environment, so no graph would be executed and all numbers would be zeros; unset "
            "it: warmup sets it for its own trial run alone"
        )
    return Path(os.environ[NEFF_CACHE])


def _version() -> str:
    if importlib.util.find_spec("torch_neuronx") is None:
        raise ConfigError(
            "accelerator: neuron needs TorchNeuron, which is not installed: it is in the image of Neuron SDK 2.33 or "
            "later, for Trn2 and Trn3"
        )
    version = importlib.metadata.version(PACKAGE)
    if tuple(int(part) for part in version.split(".")[:2]) < OLDEST:
        raise ConfigError(
            f"{PACKAGE} {version} is PyTorch/XLA, for accelerator: xla; accelerator: neuron needs TorchNeuron, "
            "release 2.13 or later, in an image of its own"
        )
    return version


def _settings(config: Config, precision: str, several_nodes: bool) -> dict[str, str]:
    """Return the variables of the configuration. Raises ConfigError as `prepare_environment`."""
    compiler = config.compiler
    if compiler.target not in TARGETS:
        raise ConfigError(
            f"compiler.target is {compiler.target}, and TorchNeuron runs on {' and '.join(TARGETS)}; set it to the "
            "machines that you have, or set accelerator: xla"
        )
    flags = checked_flags(compiler, precision, os.environ)
    variables = {NEURON_FLAGS: flags, "NEURON_RT_EXEC_TIMEOUT": str(compiler.exec_timeout_seconds)}
    return variables | (_EFA if several_nodes or compiler.efa else {})


class NeuronAccelerator(Accelerator):
    """One logical NeuronCore: TorchNeuron's device of this process."""

    name = "neuron"
    backend = "cpu:gloo,neuron:neuron"
    reads_graphs = True
    ahead_compiler = COMPILE_ONLY

    def __init__(self, rank: Rank, environment: NeuronEnvironment) -> None:
        super().__init__(rank)
        found = torch.accelerator.current_accelerator()
        if found is None:
            raise ConfigError("accelerator: neuron needs a NeuronCore for each worker, and this machine shows none")
        self.device = found
        self.environment = environment
        self.graph_folder = environment.cache
        self.collects_only = is_compile_only()
        self._folder = None if self.collects_only else SharedFolder(environment.cache)
        self.compiler, self.flags = environment.compiler, environment.flags
        self.graphs = self._watch = GraphWatch(_compilations, lambda: list_neffs(environment.cache))
        torch._dynamo.config.recompile_limit = MOST_VARIANTS

    def join(self) -> None:
        super().join()
        self._watch.start()

    def leave(self) -> None:
        """Wait for running work, then leave the group and the folder of graphs."""
        torch.accelerator.synchronize()
        super().leave()
        self.abandon()

    def abandon(self) -> None:
        """Leave the folder of graphs."""
        if self._folder is not None:
            self._folder.leave()

    @property
    def fast_bf16(self) -> bool:
        return True

    @property
    def variables(self) -> dict[str, str]:
        return self.environment.variables

    def synchronize(self) -> None:
        self.cut()
        torch.accelerator.synchronize()

    def to_device(self, model: nn.Module) -> None:
        """Move the model, its integer buffers as int32: BERT keeps its token types in one."""
        for part in model.modules():
            for name, buffer in part.named_buffers(recurse=False):
                setattr(part, name, _narrow(buffer))
        super().to_device(model)

    # --- graphs ---------------------------------------------------------------------------------------------------

    def compile(self, function: Callable[P, T]) -> Callable[P, T]:
        return torch.compile(function, backend="neuron", fullgraph=True, dynamic=False)

    def cut(self) -> None:
        """Check the graphs that were compiled; they have been started already."""
        self._watch.poll()

    def scalar(self, value: float) -> torch.Tensor:
        return self.upload(torch.tensor(value, dtype=torch.float32))

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        return _narrow(tensor).to(self.device, copy=True)

    def send(self, batch: M) -> M:
        return replace_tensors(batch, _narrow).to(self.device)

    def feed(self, batches: Iterable[M]) -> Iterator[M]:
        """Make batches in a thread, and send each when it is taken."""
        for batch in self.ahead(batches):
            yield self.send(batch)

    def ahead(self, works: Iterable[T]) -> Iterator[T]:
        with contextlib.closing(make_ahead(works, lambda done: done)) as made:
            yield from made

    # --- collectives ----------------------------------------------------------------------------------------------

    def clip_gradients(self, model: nn.Module, most: float) -> torch.Tensor:
        """Clip by torch's formula; torch's own function groups tensors in a way that no graph can hold."""
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each.float()) for each in gradients]))
        factor = (most / (norm + 1e-6)).clamp(max=1.0)
        for each in gradients:
            each.mul_(factor)
        return norm

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """All-gather with gradients, as operations of a graph; the backward pass is a reduce-scatter."""
        if self.rank.world == 1:
            return rows
        gathered: Any = traced.all_gather_tensor_autograd(rows.contiguous(), 0, _everyone())
        return gathered  # type: ignore[no-any-return]

    def _wait_for_all(self) -> None:
        dist.all_reduce(torch.zeros(1))  # on the host; the device's own barrier would be a graph

    def _reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.device.type != self.device.type:
            return super()._reduce_scatter(rows)
        return traced.reduce_scatter_tensor(rows.contiguous(), "sum", 0, _everyone())


def _everyone() -> Any:
    return dist.group.WORLD


def _narrow(tensor: torch.Tensor) -> torch.Tensor:
    """Return int64 as int32, which suffices for all ids and places; other types as they are."""
    return tensor.int() if tensor.dtype == torch.int64 else tensor


def _compilations() -> tuple[int, float]:
    """Return this process's number of traced graphs and the seconds to trace and compile them."""
    return counters["stats"]["unique_graphs"], sum(compilation_time_metrics.get("_compile.compile_inner", ()))
