"""One training step. Warmup runs the same code, so training meets the same graphs."""

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

_STRIDE = 7_919 * 1_000_003  # between the seeds of two chunks: far from those of other steps


class Chunks:
    """The sequences of a batch, in equal chunks. Each has its own seed, so that both passes drop the same."""

    def __init__(
        self,
        model: EmbeddingModel,
        texts: Texts,
        count: int,
        accelerator: Accelerator,
        precision: Precision,
        seed: int,
    ) -> None:
        """Encode all sequences, whose number is a multiple of `count`, without gradients."""
        self._model, self._texts, self._accelerator = model, texts, accelerator
        self._precision: Precision = precision
        self._seed = seed
        self._rows = torch.arange(len(texts.ids)).chunk(count)
        with torch.no_grad():
            encoded = [self._encode(number) for number in range(count)]
        self.pooled = torch.cat(
            encoded
        ).requires_grad_()  # float32 (R * segments, D), as `EmbeddingModel.pool` gives it

    def backward(self) -> None:
        """Pass the gradient of `pooled` on to the encoder's weights, chunk by chunk."""
        assert self.pooled.grad is not None
        gradient = self.pooled.grad.unflatten(0, (len(self._texts.ids), -1))
        for number, rows in enumerate(self._rows):
            part = gradient.index_select(0, self._accelerator.upload(rows)).flatten(0, 1)
            self._encode(number, part)

    def _encode(self, number: int, gradient: torch.Tensor | None = None) -> torch.Tensor:
        """Return the pooled texts of a chunk; with a gradient, go backward too."""
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


ALL_WORKERS = 1_008  # in place of a worker's number, in the seed of what all draw alike; no worker has it


@dataclass(eq=False)
class TrainStep:
    """Forward, backward, sum over the workers, clip, update; on compiled devices two graphs, cut here and only here.

    The first graph ends after the backward pass, so that the second, with the update in it, is the same for batches of
    any shape. A batch in chunks has a graph for the chunks before and after that of the losses.
    """

    model: EmbeddingModel
    optimizer: torch.optim.AdamW
    accelerator: Accelerator
    config: Config
    precision: Precision
    steps: range = range(0)  # of the run; empty: not known, so no rate decays before its end
    average: RunningAverage | None = None
    _names: tuple[str, ...] = ()
    _sums: torch.Tensor | None = None  # float32 (losses,) on the device
    _steps: int = 0

    def __call__(self, batch: Batch, step: int) -> dict[str, torch.Tensor]:
        """Take global step `step` on this worker's part of a batch, which must be on the device.

        Returns:
            Detached float32 scalars on the device, this worker's parts: the losses are their sums over the workers.
        """
        seed = _seed(self.config.seed, step, self.accelerator.rank.index)
        self.accelerator.seed(seed)
        set_rates(self.optimizer, step, self.steps, self.config.train)
        self.optimizer.zero_grad(set_to_none=True)
        chunks, pooled = None, None
        if self.config.train.chunks > 1:
            count = self.config.train.chunks
            chunks = Chunks(self.model, batch.texts, count, self.accelerator, self.precision, seed)
            pooled = chunks.pooled
        with self.accelerator.autocast(self.precision):
            losses = batch_losses(self.model, batch, self.config.heads, self.accelerator, pooled)
        losses["loss"].backward()
        self.accelerator.cut()
        if chunks is not None:
            chunks.backward()
        self.accelerator.reduce_gradients(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.train.max_gradient_norm)
        # Weights in bf16 are rounded by random numbers, which must be the same on all workers, unlike those of dropout.
        self.accelerator.seed(_seed(self.config.seed, step, ALL_WORKERS))
        self.optimizer.step()
        if self.average is not None:
            self.average.update(self.model, step)
        parts = {name: loss.detach() for name, loss in losses.items()}
        self._add(parts)
        self.accelerator.cut()
        return parts

    def take_losses(self) -> tuple[tuple[str, ...], torch.Tensor, int]:
        """Return names, their sums float32 (losses,) on the device, and over how many steps; then reset the sums."""
        assert self._sums is not None, "no step since the last call"
        taken = (self._names, self._sums, self._steps)
        self._sums, self._steps = None, 0
        return taken

    def _add(self, parts: dict[str, torch.Tensor]) -> None:
        """Sum up on the device, from zeros that are sent there: zeros made there would be a graph of their own."""
        if self._sums is None:
            self._names, self._sums = tuple(parts), self.accelerator.upload(torch.zeros(len(parts)))
        self._sums = self._sums + torch.stack([part.float() for part in parts.values()])
        self._steps += 1


def _seed(seed: int, step: int, of: int) -> int:
    """Return the seed of one worker's random numbers at a step, or of those that all workers share."""
    return seed * 1_000_003 + step * 1_009 + of
