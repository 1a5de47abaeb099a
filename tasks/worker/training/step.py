"""One training step. Warmup runs the same code, so training meets no other graphs."""

import dataclasses
from dataclasses import dataclass

import torch

from configs.schema.config import Config
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.devices.base import Precision
from tasks.worker.model.embedding_model import EmbeddingModel, Texts
from tasks.worker.training.batches import Batch
from tasks.worker.training.forgetting import RunningAverage
from tasks.worker.training.losses import batch_losses
from tasks.worker.training.optimizer import set_rates

GRADIENT_NORM = "gradient_norm"
_STRIDE = 7_919 * 1_000_003  # between the seeds of chunks, far from the seeds of other steps


class GradientCache:
    """The sequences of a batch in equal chunks, for a gradient cache.

    Each chunk has its own seed, so that both forward passes have the same dropout.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        texts: Texts,
        count: int,
        accelerator: Accelerator,
        precision: Precision,
        seed: int,
    ) -> None:
        """Encode all sequences without gradients; their number is a multiple of `count`."""
        self._model, self._texts, self._accelerator = model, texts, accelerator
        self._precision: Precision = precision
        self._seed = seed
        self._rows = torch.arange(len(texts.ids)).chunk(count)
        with torch.no_grad():
            encoded = [self._encode(number) for number in range(count)]
        self.pooled = torch.cat(encoded).requires_grad_()  # float32 (R * segments, D), as from `EmbeddingModel.pool`

    def backward(self) -> None:
        """Propagate the gradient of `pooled` to the encoder's weights, chunk by chunk."""
        assert self.pooled.grad is not None
        gradient = self.pooled.grad.unflatten(0, (len(self._texts.ids), -1))
        for number, rows in enumerate(self._rows):
            part = gradient.index_select(0, self._accelerator.upload(rows)).flatten(0, 1)
            self._encode(number, part)

    def _encode(self, number: int, gradient: torch.Tensor | None = None) -> torch.Tensor:
        """Return the pooled texts of a chunk; with a gradient, run the backward pass too."""
        self._accelerator.seed(self._seed + (number + 1) * _STRIDE)
        rows = self._accelerator.upload(self._rows[number])  # as data, so that all chunks share one graph
        names = ("ids", "segments", "positions")
        part = dataclasses.replace(
            self._texts, **{name: getattr(self._texts, name).index_select(0, rows) for name in names}
        )
        with self._accelerator.autocast(self._precision):
            pooled = self._model.pool(part)
        if gradient is not None:
            pooled.backward(gradient)
        self._accelerator.cut()
        return pooled


ALL_WORKERS = 1_008  # stands for the worker's number in seeds that all workers share; no worker has this number


@dataclass(eq=False)
class TrainStep:
    """Forward, backward, all-reduce, clip, update; on compiled devices two graphs, which are cut only here.

    The first graph ends after the backward pass, so that the second, with the update, is the same for batches of any
    shape. With chunks, the graphs of the chunks come before and after the graph of the losses.
    """

    model: EmbeddingModel
    optimizer: torch.optim.AdamW
    accelerator: Accelerator
    config: Config
    precision: Precision
    steps: range = range(0)  # steps of the run; empty: unknown, so the rate does not decay at its end
    average: RunningAverage | None = None
    _names: tuple[str, ...] = ()
    _sums: torch.Tensor | None = None  # float32 (losses,) on the device
    _steps: int = 0

    def __call__(self, batch: Batch, step: int) -> dict[str, torch.Tensor]:
        """Run global step `step` on this worker's part of a batch, which must be on the device.

        Returns:
            This worker's parts of the losses, detached float32 scalars on the device; a loss is their sum over workers.
        """
        seed = _seed(self.config.seed, step, self.accelerator.rank.index)
        self.accelerator.seed(seed)
        set_rates(self.optimizer, step, self.steps, self.config.train)
        self.optimizer.zero_grad(set_to_none=True)
        chunks, pooled = None, None
        if self.config.train.gradcache_chunks > 1:
            count = self.config.train.gradcache_chunks
            chunks = GradientCache(self.model, batch.texts, count, self.accelerator, self.precision, seed)
            pooled = chunks.pooled
        with self.accelerator.autocast(self.precision):
            losses = batch_losses(self.model, batch, self.config.heads, self.accelerator, pooled)
        if chunks is None:
            self.accelerator.begin_backward(self.optimizer)
        losses["loss"].backward()
        self.accelerator.cut()
        if chunks is not None:
            chunks.backward()
        self.accelerator.reduce_gradients(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.train.max_gradient_norm)
        # Stochastic rounding of bf16 weights needs the same random numbers on all workers; dropout does not.
        self.accelerator.seed(_seed(self.config.seed, step, ALL_WORKERS))
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.model, step)
        parts = {name: loss.detach() for name, loss in losses.items()}
        self._add(parts | {GRADIENT_NORM: norm.detach() / self.accelerator.rank.world})  # all workers have the same one
        self.accelerator.cut()
        return parts

    def take_losses(self) -> tuple[tuple[str, ...], torch.Tensor, int]:
        """Return names, their sums float32 (names,) on the device, and the number of steps; then reset.

        The names are those of the losses, and GRADIENT_NORM: the norm before it is clipped, of which each worker has a
        part too.
        """
        assert self._sums is not None, "no step since the last call"
        taken = (self._names, self._sums, self._steps)
        self._sums, self._steps = None, 0
        return taken

    def _add(self, parts: dict[str, torch.Tensor]) -> None:
        """Add to the sums on the device. Initial zeros are uploaded, because creating them there would be a graph."""
        if self._sums is None:
            self._names, self._sums = tuple(parts), self.accelerator.upload(torch.zeros(len(parts)))
        self._sums = self._sums + torch.stack([part.float() for part in parts.values()])
        self._steps += 1


def _seed(seed: int, step: int, of: int) -> int:
    """Return the seed of a step for worker number `of`, or for ALL_WORKERS."""
    return seed * 1_000_003 + step * 1_009 + of
