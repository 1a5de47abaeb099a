"""PyTorch/XLA: NeuronCores through torch-neuronx, or this machine's CPU, with the same graphs and code.

Operations are traced, and run as one compiled graph at each `cut`. So a graph must not change from step to step;
`GraphWatch` checks this. Import this file after `prepare_environment`.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.debug.metrics as metrics
import torch_xla.runtime as xr
from torch import nn
from torch_xla.distributed.parallel_loader import MpDeviceLoader

from tasks.worker.devices.ahead import make_ahead, one_behind
from tasks.worker.devices.base import COLLECTIVE_TIMEOUT, Accelerator, GraphWatch, M, T, gradients_of
from tasks.worker.devices.precompile import PARALLEL_COMPILE, list_graphs
from tasks.worker.devices.xla_environment import XlaEnvironment, check_place, is_collecting
from tasks.worker.process.job import Rank
from tasks.worker.process.machine import SharedFolder

NANOSECONDS = 1e-9


class XlaAccelerator(Accelerator):
    """One XLA device: a NeuronCore or a CPU.

    On Neuron, collectives are part of the graph, over the `xla` group. In XLA's CPU runtime every process sees a world
    of one, and an all-reduce returns its input; so all collectives use gloo on the host, which cuts the graph.
    """

    name = "xla"

    def __init__(self, rank: Rank, environment: XlaEnvironment) -> None:
        super().__init__(rank)
        self.environment = environment
        self.graph_folder = environment.cache
        # A trial run collects into the folder of the process that started it.
        self._folder = None if is_collecting() else SharedFolder(environment.cache)
        self.reads_graphs = environment.neuron
        self.ahead_compiler = PARALLEL_COMPILE if environment.neuron else None
        self.collects_only = is_collecting()
        self.compiler, self.flags = environment.compiler, environment.flags
        self.graphs = self._watch = GraphWatch(_compilations, self._compiled_graphs)
        self._gloo: dist.ProcessGroup | None = None

    def join(self) -> None:
        """Join the workers' group and a second one on the host, then open the device.

        Raises:
            ConfigError: the Neuron runtime sees other workers than torchrun started.
        """
        if self.rank.world > 1:
            self._join_groups()
        self.device = torch_xla.device()
        if self.rank.world > 1 and self.environment.neuron:
            check_place(self.rank, xr.world_size(), xr.global_ordinal())
        self._watch.start()

    def _join_groups(self) -> None:
        if self.environment.neuron:
            importlib.import_module("torch_xla.distributed.xla_backend")  # registers the group's backend
            dist.init_process_group("xla")
            self._gloo = dist.new_group(backend="gloo", timeout=COLLECTIVE_TIMEOUT)
        else:
            dist.init_process_group("gloo", timeout=COLLECTIVE_TIMEOUT)
            if self.rank.is_main:
                print(
                    "collectives use gloo on the host: with several processes the all-reduce of XLA's processor "
                    "runtime reduces nothing",
                    flush=True,
                )

    def leave(self) -> None:
        """Wait for running work, then leave the group and the folder of graphs."""
        xm.wait_device_ops()
        super().leave()
        self.abandon()

    def abandon(self) -> None:
        """Leave the folder of graphs."""
        if self._folder is not None:
            self._folder.leave()

    @property
    def fast_bf16(self) -> bool:
        """True on NeuronCores; XLA's CPU backend computes bf16 in fp32."""
        return self.environment.neuron

    def synchronize(self) -> None:
        self.cut()
        xm.wait_device_ops()

    def round_to_bf16(self, values: torch.Tensor) -> torch.Tensor:
        """Convert; NeuronCores round stochastically themselves, set by the environment variables."""
        return values.to(torch.bfloat16) if self.environment.neuron else super().round_to_bf16(values)

    def seed(self, value: int) -> None:
        """Seed; the seed is an input of each graph with random numbers, not a part of it."""
        torch.manual_seed(value)
        xm.set_rng_state(value % 2**31, str(self.device))

    # --- graphs ---------------------------------------------------------------------------------------------------

    @property
    def variables(self) -> dict[str, str]:
        return self.environment.variables

    def cut(self) -> None:
        torch_xla.sync()
        self._watch.poll()

    def scalar(self, value: float) -> torch.Tensor:
        """Send the number at each step: a constant, or overwriting one, would make a new graph."""
        return self.upload(torch.tensor(value, dtype=torch.float32))

    def upload(self, tensor: torch.Tensor) -> torch.Tensor:
        """Send the tensor; not by `to`, which turns scalars of 0 or 1 into constants and makes another graph."""
        sent: Any = xm.send_cpu_data_to_device([tensor], self.device)
        return sent[0]

    def settle(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Send all optimiser state, zeros included, and pass state and weights once through the device.

        Otherwise the first step would start from constants and write to buffers that it may not reuse; both give it
        another graph than the second step's.
        """
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    state = optimizer.state[parameter]
                    parameter.mul_(1)
                    state.setdefault("step", torch.tensor(0.0))
                    for name in ("exp_avg", "exp_avg_sq"):  # the order is part of the graph
                        state[name] = self.upload(state[name].cpu() if name in state else torch.zeros(parameter.shape))
                        state[name].mul_(1)
        self.cut()

    def feed(self, batches: Iterable[M]) -> Iterator[M]:
        """Make and send batches in threads; re-raise their errors, after which the loader would just end."""
        failed: list[BaseException] = []

        def guarded() -> Iterator[M]:
            try:
                yield from batches
            except BaseException as error:  # raised again in the training thread
                failed.append(error)

        yield from MpDeviceLoader(guarded(), self.device)
        if failed:
            raise failed[0]

    def ahead(self, works: Iterable[T]) -> Iterator[T]:
        with contextlib.closing(make_ahead(works, lambda done: done)) as made:
            yield from made

    def fetch_behind(self, results: Iterable[tuple[T, torch.Tensor]]) -> Iterator[tuple[T, torch.Tensor]]:
        """Start the graph of each result, and wait for it once the next one is started."""

        def start(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
            self.cut()
            return lambda: tensor.detach().cpu()

        return one_behind((what, start(tensor)) for what, tensor in results)

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        self.cut()  # the whole graph, not the tensor's part of it
        return tensor.detach().cpu()

    def when_known(self, then: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> None:
        xm.add_step_closure(lambda value: then(value.cpu()), (tensor.detach(),))

    def _compiled_graphs(self) -> dict[str, int]:
        """Return name -> bytes. The CPU runtime writes one file per graph, named by the graph's hash."""
        if self.environment.neuron:
            return list_graphs(self.environment.cache)
        return {path.name: path.stat().st_size for path in self.environment.cache.iterdir()}

    # --- collectives ----------------------------------------------------------------------------------------------

    def reduce_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        if self.rank.world == 1 or not self.environment.neuron:
            super().reduce_gradients(optimizer)
            return
        xm.reduce_gradients(optimizer, pin_layout=False)  # in buckets; divides by the number of workers
        for gradient in gradients_of(optimizer):
            gradient.mul_(self.rank.world)

    def barrier(self) -> None:
        """Wait on the host: XLA's rendezvous is a graph too."""
        self.cut()
        super().barrier()

    def _wait_for_all(self) -> None:
        dist.barrier(self._gloo)

    def _all_reduce(self, tensor: torch.Tensor) -> None:
        if tensor.device.type != "xla":
            dist.all_reduce(tensor, group=self._gloo)
        elif self.environment.neuron:
            xm.all_reduce(xm.REDUCE_SUM, [tensor], pin_layout=False)  # in place only for a list
        else:
            on_host = self.fetch(tensor)
            dist.all_reduce(on_host)
            tensor.copy_(on_host)

    def _all_gather(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.device.type == "xla" and self.environment.neuron:
            return xm.all_gather(rows, pin_layout=False)
        on_host = self.fetch(rows) if rows.device.type == "xla" else rows
        parts = [torch.empty_like(on_host) for _ in range(self.rank.world)]
        dist.all_gather(parts, on_host, group=self._gloo)
        return torch.cat(parts).to(rows.device)

    def _reduce_scatter(self, rows: torch.Tensor) -> torch.Tensor:
        if rows.device.type == "xla" and self.environment.neuron:
            summed = xm.reduce_scatter(
                xm.REDUCE_SUM, rows, 1.0, scatter_dim=0, shard_count=self.rank.world, pin_layout=False
            )
            assert isinstance(summed, torch.Tensor)  # it returns a list only for a list
            return summed
        on_host = self.fetch(rows) if rows.device.type == "xla" else rows.clone()
        dist.all_reduce(on_host, group=self._gloo)
        return on_host.chunk(self.rank.world)[self.rank.index].to(rows.device)


def _compilations() -> tuple[int, float]:
    """Return this process's number of compilations and their seconds."""
    count = metrics.counter_value("UncachedCompile") or 0
    timings = metrics.metric_data("CompileTime") if count else None
    return count, timings[1] * NANOSECONDS if timings else 0.0
