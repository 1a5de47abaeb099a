"""A batch encoded in chunks, so that its activations need the memory of one chunk.

Gao et al. 2021 (arXiv:2101.06983, section 3.2): encode without gradients, take the gradient of the loss with respect to
what was encoded, then encode each chunk again and pass its part of that gradient on. The sum over the chunks is the
gradient of the whole batch. Here the chunks are sequences, and what is cached are pooled texts, before the features.
"""

import dataclasses

import torch

from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.devices.base import Precision
from tasks.worker.model.embedding_model import EmbeddingModel, Texts

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
