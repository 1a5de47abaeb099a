"""The workers' copies of the weights, compared bit for bit before each checkpoint.

Nothing else notices copies that drift apart: the losses are sums over all workers and look well, while each worker's
gradient is of another model, and the first worker's copy is released.
"""

import time
import zlib
from collections.abc import Mapping

import torch
from torch import nn

from tasks.foundation.errors import CodeError
from tasks.worker.devices.accelerators import Accelerator


class Replicas:
    """The models that every worker must hold alike, by what messages call them."""

    def __init__(self, models: Mapping[str, nn.Module], accelerator: Accelerator) -> None:
        self._models, self._accelerator = models, accelerator
        self.seconds = 0.0  # that all comparisons took

    def compare(self, step: int) -> None:
        """Compare all workers' weights after global step `step`; each worker gets the same answer.

        Raises:
            CodeError: they differ. Names the first weights that do, and the workers of each copy.
        """
        if self._accelerator.rank.world == 1:
            return
        began = time.perf_counter()
        names, sums = [], []
        for called, model in self._models.items():
            for name, weight in model.state_dict().items():
                names.append(f"{called} {name}")
                sums.append(checksum(weight))
        copies = self._accelerator.gather(torch.tensor([sums], dtype=torch.int64))  # (workers, weights), on the host
        self.seconds += time.perf_counter() - began
        differing = (copies != copies[0]).any(dim=0).nonzero().flatten().tolist()
        if differing:
            raise CodeError(
                f"the workers' copies of the weights differ at step {step}, in {len(differing)} of {len(names)} "
                f"tensors, first in {names[differing[0]]}: {_who(copies[:, differing[0]].tolist())}. So no checkpoint "
                "was written; the one before it was equal on all workers, and the same command continues from it. All "
                "workers must be machines of one kind with the same packages; if they are, check the memory of those "
                "in the minority (millrace hosts), and if it happens again at this step, set train.precision=bf16"
            )


def checksum(weight: torch.Tensor) -> int:
    """Return the CRC-32 of a tensor's bits, wherever it is: each single flipped bit changes it."""
    return zlib.crc32(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)


def _who(sums: list[int]) -> str:
    """Return the workers of each copy, the copy that most of them hold first."""
    holders: dict[int, list[str]] = {}
    for worker, each in enumerate(sums):
        holders.setdefault(each, []).append(str(worker))
    copies = sorted(holders.values(), key=len, reverse=True)
    return ", ".join(f"worker{'s' * (len(each) > 1)} {' and '.join(each)} hold{'s' * (len(each) == 1)} "
                     f"{'one' if number == 0 else 'another'}" for number, each in enumerate(copies))  # fmt: skip
