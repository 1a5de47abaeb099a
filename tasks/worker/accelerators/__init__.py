"""Devices behind one small interface. A new device is a new file here and one line in `open_accelerator`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tasks.worker.accelerators.base import Accelerator
from tasks.worker.job import Rank

__all__ = ["Accelerator", "open_accelerator"]


@contextlib.contextmanager
def open_accelerator(name: str, rank: Rank) -> Iterator[Accelerator]:
    """The accelerator of that name, with its process group open for the length of the block.

    Raises:
        ConfigError: there is no such device on this machine.
    """
    if name == "cuda":
        from tasks.worker.accelerators.cuda import CudaAccelerator as Chosen
    else:
        from tasks.worker.accelerators.cpu import CpuAccelerator as Chosen
    accelerator = Chosen(rank)
    accelerator.join()
    try:
        yield accelerator
    finally:
        accelerator.leave()
