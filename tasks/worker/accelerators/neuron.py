"""Native TorchNeuron (torch-neuronx from 2.13): NeuronCores as a torch device of their own, without XLA.

UNPROVEN: written from the published documentation of its beta, and never run on the hardware (Trn2 or newer). It
needs an image of its own: torch-neuronx 2.9 has the same package name and is what `accelerator: xla` uses.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
from typing import Any, ClassVar

import torch
from torch import nn

from tasks.errors import ConfigError
from tasks.worker.accelerators.base import Accelerator, Precision
from tasks.worker.accelerators.cpu import free_host_bytes, peak_host_bytes
from tasks.worker.job import Rank

PACKAGE = "torch-neuronx"
FIRST_NATIVE = (2, 13)


class NeuronAccelerator(Accelerator):
    """One logical NeuronCore, eager: operations run as they come, so there are no graphs to compile ahead.

    With several processes the collectives of the device go over the backend `neuron`, those of the host over gloo.
    """

    name = "neuron"
    backend = "cpu:gloo,neuron:neuron"
    adamw_options: ClassVar[dict[str, bool]] = {"foreach": False}  # the plain one: known to work on any device

    def __init__(self, rank: Rank) -> None:
        """Raises ConfigError where the native torch-neuronx is not installed."""
        super().__init__(rank)
        require_native()
        importlib.import_module("torch_neuronx")  # registers the device and its process group
        self.device = torch.device("neuron", rank.local)

    @property
    def fast_bf16(self) -> bool:
        return True

    def place(self, model: nn.Module) -> None:
        from tasks.worker.attention import use_matmul_attention  # seconds to import, and not every stage has a model

        super().place(model)
        use_matmul_attention(model)

    def autocast(self, precision: Precision) -> contextlib.AbstractContextManager[Any]:
        if precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast("neuron", dtype=torch.bfloat16)

    def synchronize(self) -> None:
        torch.accelerator.synchronize()

    def free_memory_bytes(self) -> int:
        """Of the host: how to ask the device is not documented."""
        return free_host_bytes() // self.rank.local_world

    def peak_memory_bytes(self) -> int:
        """Of the host."""
        return peak_host_bytes()


def require_native() -> None:
    """Raises ConfigError unless torch-neuronx is installed in a version that has the native device."""
    way_out = "accelerator: neuron needs Trn2 or newer and an image with torch-neuronx 2.13 or newer"
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(f"{way_out}; torch-neuronx is not installed here") from error
    if tuple(int(part) for part in version.split(".")[:2]) < FIRST_NATIVE:
        raise ConfigError(f"{way_out}; here is {version}, which is PyTorch/XLA: use accelerator: xla")
