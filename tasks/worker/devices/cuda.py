"""One NVIDIA GPU per process: NCCL between GPUs, bf16 autocast.

Gradients are summed over the workers while the backward pass still runs: bucket by bucket, as each is complete. The
sums equal those of one all-reduce at the end; only their time is hidden, as NCCL's collectives run beside the
computation.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import nn

from tasks.foundation.errors import ConfigError
from tasks.worker.devices.ahead import FlatBatch, make_ahead, one_behind
from tasks.worker.devices.base import Accelerator, M, T, parameters_of
from tasks.worker.process.job import Rank


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


class CudaAccelerator(OverlappedGradients):
    """The GPU whose number is the local rank."""

    name = "cuda"
    backend = "cpu:gloo,cuda:nccl"
    adamw_options: ClassVar[dict[str, bool]] = {"fused": True}

    def __init__(self, rank: Rank) -> None:
        super().__init__(rank)
        found = torch.cuda.device_count()
        if rank.local >= found:
            raise ConfigError(
                f"accelerator: cuda needs a GPU for each worker; this machine has {found}. "
                "Lower train.workers or set accelerator: cpu"
            )
        self.device = self.ranking_device = torch.device("cuda", rank.local)
        torch.cuda.set_device(self.device)

    @property
    def fast_bf16(self) -> bool:
        return torch.cuda.is_bf16_supported(including_emulation=False)

    def choose_attention(self, model: nn.Module) -> None:
        """Set the attention that knows packed texts by their lengths."""
        from tasks.worker.devices.encoder_layers import (
            VARLEN,
            use_attention,  # transformers takes seconds to import
        )

        use_attention(model, VARLEN)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.device)

    def feed(self, batches: Iterable[M]) -> Iterator[M]:
        """Make batches in a thread, in pinned memory, and copy each to the GPU without waiting for it."""

        def pinned(batch: M) -> FlatBatch:
            with torch.cuda.device(self.device):  # each thread has its own current GPU
                return FlatBatch.of(batch, pinned=True)

        with contextlib.closing(make_ahead(batches, pinned)) as made:
            for batch in made:
                yield batch.to(self.device)

    def ahead(self, works: Iterable[T]) -> Iterator[T]:
        with contextlib.closing(make_ahead(works, lambda done: done)) as made:
            yield from made

    def fetch_behind(self, results: Iterable[tuple[T, torch.Tensor]]) -> Iterator[tuple[T, torch.Tensor]]:
        """Copy each result into pinned memory without waiting, and wait for its event once the next one is queued."""

        def start(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
            with torch.cuda.device(self.device):
                there = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                there.copy_(tensor.detach(), non_blocking=True)
                copied = torch.cuda.Event()
                copied.record()

            def wait() -> torch.Tensor:
                copied.synchronize()
                return there

            return wait

        return one_behind((what, start(tensor)) for what, tensor in results)

    def free_memory_bytes(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0]

    def peak_memory_bytes(self) -> int:
        return torch.cuda.max_memory_allocated(self.device)
