"""Devices behind one small interface. A new device is a new file here and one case in `make_accelerator`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Literal

from configs.schema import Config
from tasks.worker.accelerators.base import Accelerator, Precision
from tasks.worker.job import Rank

__all__ = ["Accelerator", "make_accelerator", "open_accelerator", "opened"]


@contextlib.contextmanager
def open_accelerator(
    name: str, rank: Rank, config: Config | None = None, precision: Precision | Literal["auto"] = "auto"
) -> Iterator[Accelerator]:
    """The accelerator of that name, with device and process group open for the length of the block.

    Args: see `make_accelerator`.

    Raises:
        ConfigError: there is no such device on this machine.
    """
    accelerator = make_accelerator(name, rank, config, precision)
    with opened(accelerator):
        yield accelerator


@contextlib.contextmanager
def opened(accelerator: Accelerator) -> Iterator[None]:
    """Hold the device and its process group.

    After an error the group is not left: its connections end with the process, which tells why it failed before that.
    Else the others could be the first to tell of an error, that they have lost this one.
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
    """The accelerator of that name, not yet open. Imports what this device needs, and of the others nothing.

    Args:
        config: how to compile, for the devices that do; None is the compiler's own choice.
        precision: what the stage will ask for; some devices must know before they start.
    """
    match name:
        case "cuda":
            from tasks.worker.accelerators.cuda import CudaAccelerator

            return CudaAccelerator(rank)
        case "xla":
            from tasks.worker.accelerators.xla_environment import prepare_environment

            environment = prepare_environment(config, precision, rank)

            from tasks.worker.accelerators.xla import XlaAccelerator  # after the environment: torch-xla reads it

            return XlaAccelerator(rank, environment)
        case "neuron":
            from tasks.worker.accelerators.neuron import NeuronAccelerator

            return NeuronAccelerator(rank)
        case _:
            from tasks.worker.accelerators.cpu import CpuAccelerator

            return CpuAccelerator(rank)
