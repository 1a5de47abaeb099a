"""Devices behind one small interface. A new device is a new file here and an entry in `DEVICES`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Literal

from configs.schema.config import Config
from tasks.foundation.errors import ConfigError
from tasks.worker.devices import xla_environment
from tasks.worker.devices.base import Accelerator, Precision
from tasks.worker.process.job import Rank

__all__ = ["Accelerator", "make_accelerator", "open_accelerator", "open_device", "uses_neuron"]


@contextlib.contextmanager
def open_accelerator(
    name: str, rank: Rank, config: Config | None = None, precision: Precision | Literal["auto"] = "auto"
) -> Iterator[Accelerator]:
    """Yield the accelerator `name`; its device and process group are open inside the block.

    Args as for `make_accelerator`. Raises ConfigError: this machine has no such device.
    """
    accelerator = make_accelerator(name, rank, config, precision)
    with open_device(accelerator):
        yield accelerator


@contextlib.contextmanager
def open_device(accelerator: Accelerator) -> Iterator[None]:
    """Keep the device and its process group open inside the block.

    After an error this worker does not leave the group; its connections close when the process ends. It can thus
    report its error before the other workers report a lost connection.
    """
    accelerator.join()
    try:
        yield
    except BaseException:
        accelerator.abandon()
        raise
    accelerator.leave()


def make_accelerator(
    name: str, rank: Rank, config: Config | None = None, precision: Precision | Literal["auto"] = "auto"
) -> Accelerator:
    """Return the accelerator `name`, not yet open. Only the packages of this device are imported.

    Args:
        config: its compiler settings are for devices that compile; None: the compiler's defaults.
        precision: that the stage will request; some devices need it before they start.

    Raises:
        ConfigError: the accelerator is unknown, or its packages are not installed.
    """
    if name not in DEVICES:
        raise ConfigError(f"unknown accelerator {name!r}; use one of {', '.join(DEVICES)}")
    return DEVICES[name](rank, config, precision)


def uses_neuron(name: str) -> bool:
    """Return True if the accelerator's devices on this machine are NeuronCores."""
    return name == "neuron" or (name == "xla" and xla_environment.means_neuron())


def _cpu(rank: Rank, config: Config | None, precision: str) -> Accelerator:
    from tasks.worker.devices.cpu import CpuAccelerator

    return CpuAccelerator(rank)


def _cuda(rank: Rank, config: Config | None, precision: str) -> Accelerator:
    from tasks.worker.devices.cuda import CudaAccelerator

    return CudaAccelerator(rank)


def _xla(rank: Rank, config: Config | None, precision: str) -> Accelerator:
    environment = xla_environment.prepare_environment(config, precision, rank)

    from tasks.worker.devices.xla import XlaAccelerator  # after the environment: torch-xla reads it

    return XlaAccelerator(rank, environment)


def _neuron(rank: Rank, config: Config | None, precision: str) -> Accelerator:
    from tasks.worker.devices.neuron import NeuronAccelerator, prepare_environment

    return NeuronAccelerator(rank, prepare_environment(config, precision, rank))


DEVICES: dict[str, Callable[[Rank, Config | None, str], Accelerator]] = {
    "cpu": _cpu,
    "cuda": _cuda,
    "neuron": _neuron,
    "xla": _xla,
}
