"""Gradients summed during the backward pass, between two workers on gloo in place of NCCL."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist

from tasks.worker.devices.base import Accelerator
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.devices.cuda import OverlappedGradients
from tasks.worker.process.job import Rank
from tests.support.processes.ranks import run_ranks


class Overlapping(OverlappedGradients, CpuAccelerator):
    """A CPU that sums as a GPU does, a layer at a time."""

    bucket_bytes = 4 * 8 * 9


class Net(torch.nn.Module):
    """Four layers: the second is used twice, the last never."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        first, second, third, _ = self.layers
        return third(second(second(first(rows)).tanh()).tanh())


def trained(accelerator: Accelerator) -> dict[str, Any]:
    """Weights after three steps, gradients after one more sum, buckets begun when each pass ends."""
    accelerator.join()
    net, begun = Net(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def look(_: torch.Tensor) -> None:
        buckets = getattr(accelerator, "_gradients", None)
        begun.append(buckets.started if buckets else 0)

    first: Any = net.layers[0]
    first.weight.register_post_accumulate_grad_hook(look)
    for step in range(3):
        optimizer.zero_grad(set_to_none=True)
        loss = net(torch.arange(16.0).view(2, 8) * (1 + accelerator.rank.index + step)).square().sum()
        accelerator.begin_backward(optimizer)
        loss.backward()
        accelerator.reduce_gradients(optimizer)
        optimizer.step()
    accelerator.reduce_gradients(optimizer)  # without a backward pass before it, as health does
    gradients = [one.grad.tolist() for one in net.parameters() if one.grad is not None]
    dist.destroy_process_group()
    return {"weights": [one.tolist() for one in net.parameters()], "gradients": gradients, "begun": begun}


def trained_as(rank: Rank, kind: type[Accelerator]) -> dict[str, Any]:
    return trained(kind(rank))


@pytest.mark.shows("overlapped sums")
def test_overlapped_sums_are_those_of_one_at_the_end_bit_for_bit():
    # Each way in processes of its own: a second group on the port of the first may meet a worker that still leaves.
    ways = [run_ranks(2, trained_as, kind) for kind in (CpuAccelerator, Overlapping)]
    for at_the_end, overlapped in zip(*ways, strict=True):
        assert overlapped["weights"] == at_the_end["weights"]
        assert overlapped["gradients"] == at_the_end["gradients"]
        # The first pass shows which layers have gradients; then the third and the second are summed before its end.
        assert overlapped["begun"] == [0, 2, 2]
