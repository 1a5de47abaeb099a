"""Gradients summed over the workers while the backward pass still runs: bucket by bucket, as each is complete.

The sums equal those of one all-reduce at the end; only their time is hidden. For devices whose collectives run beside
the computation, as those of NCCL do.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from tasks.worker.devices.base import Accelerator, parameters_of


class _Bucket:
    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self.parameters = parameters
        self.missing = len(parameters)
        self._sum: tuple[list[torch.Tensor], torch.Tensor, Any] | None = None

    def start(self) -> None:
        gradients = [one.grad for one in self.parameters if one.grad is not None]
        if gradients:
            flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
            self._sum = gradients, flat, dist.all_reduce(flat, async_op=True)

    def finish(self) -> None:
        if self._sum is None:
            return
        gradients, flat, work = self._sum
        work.wait()
        for gradient, part in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
            gradient.copy_(part.view_as(gradient))
        self._sum = None


class GradientBuckets:
    """The parameters of a training in buckets, in the order in which the backward pass reaches them.

    All workers start the buckets in this order. So it has no parameter that the backward pass leaves out, which would
    hold up the rest; the first pass shows which these are.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, bucket_bytes: int) -> None:
        self.running = False
        self.started = 0  # buckets of this backward pass
        self._optimizer = optimizer
        self._buckets: list[_Bucket] = []
        group: list[nn.Parameter] = []
        for parameter in reversed([one for one in parameters_of(optimizer) if one.grad is not None]):
            group.append(parameter)
            if sum(one.numel() * one.element_size() for one in group) >= bucket_bytes:
                self._add(group)
                group = []
        if group:
            self._add(group)

    def begin(self) -> None:
        """Expect one backward pass."""
        self.running, self.started = True, 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.parameters)

    def finish(self) -> None:
        """Wait until every gradient holds the sum over the workers."""
        known = {parameter for bucket in self._buckets for parameter in bucket.parameters}
        late = [one for one in parameters_of(self._optimizer) if one not in known]
        rest = [*self._buckets[self.started :], _Bucket(late)]
        for bucket in rest:
            bucket.start()
        for bucket in [*self._buckets[: self.started], *rest]:
            bucket.finish()
        self.running = False

    def _add(self, parameters: list[nn.Parameter]) -> None:
        bucket = _Bucket(parameters)
        self._buckets.append(bucket)
        for parameter in parameters:
            parameter.register_post_accumulate_grad_hook(lambda _, bucket=bucket: self._reached(bucket))

    def _reached(self, bucket: _Bucket) -> None:
        bucket.missing -= 1
        while self.running and self.started < len(self._buckets) and not self._buckets[self.started].missing:
            self._buckets[self.started].start()
            self.started += 1


class OverlappedGradients(Accelerator):
    """A device that sums gradients during the backward pass, once `begin_backward` has announced it."""

    bucket_bytes = 25 * 2**20  # as DistributedDataParallel: enough for full bandwidth, and yet begun early
    _announced = False  # a backward pass of training, unlike the sums of health and of tests of the machines
    _gradients: GradientBuckets | None = None

    def begin_backward(self, optimizer: torch.optim.Optimizer) -> None:
        self._announced = self.rank.world > 1
        if self._gradients is not None:
            self._gradients.begin()

    def reduce_gradients(self, optimizer: torch.optim.Optimizer) -> None:
        if self._gradients is not None and self._gradients.running:
            self._gradients.finish()
            return
        super().reduce_gradients(optimizer)
        if self._gradients is None and self._announced:
            self._gradients = GradientBuckets(optimizer, self.bucket_bytes)
