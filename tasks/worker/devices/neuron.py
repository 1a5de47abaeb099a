"""Native TorchNeuron (torch-neuronx from 2.13): NeuronCores as a torch device of their own, without XLA.

UNPROVEN: written from the documents of its beta (SDK 2.33), and never run on the hardware (Trn2 or newer). It needs an
image of its own, as `accelerator: xla` uses torch-neuronx 2.9, a package of the same name. docs/torchneuron.md says
what moving there takes, and what these documents leave open.
"""

import contextlib
import importlib
import importlib.metadata
from typing import Any, ClassVar

import torch

from tasks.foundation.errors import ConfigError
from tasks.worker.devices.base import Accelerator, Precision
from tasks.worker.process.job import Rank

PACKAGE = "torch-neuronx"
FIRST_NATIVE = (2, 13)


class NeuronAccelerator(Accelerator):
    """One logical NeuronCore, eager: operations run at once, so there are no graphs to compile ahead.

    torch-neuronx compiles each operation when it is first met, and keeps it in a folder of the machine. With several
    processes, collectives on the device use the backend `neuron`, those on the host gloo.
    """

    name = "neuron"
    backend = "cpu:gloo,neuron:neuron"
    adamw_options: ClassVar[dict[str, bool]] = {"foreach": False}  # the plain one: known to work on any device

    def __init__(self, rank: Rank) -> None:
        """Open the device. Raises ConfigError if the native torch-neuronx is not installed."""
        super().__init__(rank)
        require_native()
        importlib.import_module("torch_neuronx")  # registers the device and its process group
        self.device = torch.device("neuron")  # as its guide says: the core that this process was started for

    @property
    def fast_bf16(self) -> bool:
        return True

    def autocast(self, precision: Precision) -> contextlib.AbstractContextManager[Any]:
        if precision != "bf16":
            return contextlib.nullcontext()
        return torch.autocast("neuron", dtype=torch.bfloat16)

    def synchronize(self) -> None:
        torch.accelerator.synchronize()


def require_native() -> None:
    """Raise ConfigError unless torch-neuronx is installed in a version that has the native device."""
    way_out = "accelerator: neuron needs Trn2 or newer and an image with torch-neuronx 2.13 or newer"
    try:
        version = importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError as error:
        raise ConfigError(f"{way_out}; torch-neuronx is not installed here") from error
    if tuple(int(part) for part in version.split(".")[:2]) < FIRST_NATIVE:
        raise ConfigError(f"{way_out}; installed is {version}, which is PyTorch/XLA: use accelerator: xla")
