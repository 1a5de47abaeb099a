"""Embed many texts on all workers: packed into batches of one static shape, or unpadded if shapes may vary.

Used by the training loop, evaluate and infer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from configs.schema.config import Config
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.devices.base import Precision
from tasks.worker.devices.encoder_layers import supports_unpadded
from tasks.worker.model.embedding_model import EmbeddingModel, Texts
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.packing import UnpaddedTexts, pack, segments_of, split_batches
from tasks.worker.model.tokens import TokenLists


@dataclass(frozen=True)
class EmbedSettings:
    """Shape and precision of every batch: `sequences` of `tokens` each; longer texts are truncated."""

    sequences: int
    tokens: int
    precision: Precision

    @property
    def texts(self) -> int:
        """Maximum number of texts in a batch."""
        return self.sequences * segments_of(self.tokens)


def embed_settings(config: Config, accelerator: Accelerator, precision: Precision | Literal["auto"]) -> EmbedSettings:
    """Return the batch shape of inference, in the given precision."""
    infer = config.infer
    return EmbedSettings(infer.batch_sequences, infer.sequence_tokens, accelerator.choose_precision(precision))


@dataclass(frozen=True)
class EmbedBatch:
    """Texts, and int64 `rows`: their output rows. Texts after the last of `rows` are padding."""

    rows: np.ndarray
    texts: Texts | UnpaddedTexts

    def to(self, device: torch.device) -> EmbedBatch:
        return EmbedBatch(self.rows, self.texts.to(device))


def embed(
    model: EmbeddingModel,
    accelerator: Accelerator,
    tokens: TokenLists,
    features: FeatureArrays,
    settings: EmbedSettings,
    shared: bool = True,
    progress: Callable[[int, int], None] | None = None,
    only: np.ndarray | None = None,
) -> np.ndarray:
    """Return unit vectors, float32 (texts, width), in the order of `tokens`.

    Args:
        shared: split the batches among the workers and give each all vectors; False: this worker embeds all texts.
        progress: called with the number of texts done and the total.
        only: the texts to embed, int64, ascending; None: all. Other texts, and texts without tokens, get zeros.
    """
    out = torch.zeros(len(tokens), model.width)
    wanted = np.arange(len(tokens)) if only is None else only
    wanted = wanted[tokens.lengths[wanted] > 0]
    index, world = (accelerator.rank.index, accelerator.rank.world) if shared else (0, 1)
    free = accelerator.unpadded and supports_unpadded(model.encoder)
    batches = (_unpadded if free else _packed)(tokens, features, settings, wanted, slice(index, None, world))
    done = 0
    model.eval()
    with torch.no_grad(), accelerator.autocast(settings.precision), model.cache_converted_weights():
        encode = accelerator.compile(_encode)
        results = ((batch.rows, encode(model, batch.texts)) for batch in accelerator.feed(batches))
        for rows, vectors in accelerator.fetch_behind(results):
            out[torch.from_numpy(rows)] = vectors[: len(rows)]
            done += len(rows) * world
            if progress is not None:
                progress(min(done, len(wanted)), len(wanted))
    model.train()
    return accelerator.sum(out).numpy() if shared else out.numpy()


def _encode(model: EmbeddingModel, texts: Texts | UnpaddedTexts) -> torch.Tensor:
    vectors: torch.Tensor = model(texts)
    return vectors.float()


def _packed(
    tokens: TokenLists, features: FeatureArrays, settings: EmbedSettings, wanted: np.ndarray, share: slice
) -> Iterator[EmbedBatch]:
    """Yield a worker's share of the batches, all of one shape."""
    packing = pack(np.minimum(tokens.lengths[wanted], settings.tokens), settings.tokens)
    for start in range(0, packing.sequences, settings.sequences)[share]:
        texts, part = packing.part(start, settings.sequences)
        rows = wanted[texts]
        laid = part.tokens(tokens.ids, tokens.offsets[rows], settings.tokens, tokens.pad)
        yield EmbedBatch(rows, Texts.of(part, laid, features.at(rows), settings.texts))


def _unpadded(
    tokens: TokenLists, features: FeatureArrays, settings: EmbedSettings, wanted: np.ndarray, share: slice
) -> Iterator[EmbedBatch]:
    """Yield a worker's share of the batches, each with at most as many tokens as a packed batch."""
    lengths = np.minimum(tokens.lengths[wanted], settings.tokens)
    order = np.argsort(-lengths, kind="stable")
    for part in list(split_batches(lengths[order], settings.sequences * settings.tokens))[share]:
        rows = wanted[order[part]]
        yield EmbedBatch(rows, UnpaddedTexts.of(tokens, rows, lengths[order[part]], features.at(rows)))


def compile_embedding(model: EmbeddingModel, accelerator: Accelerator, settings: EmbedSettings) -> None:
    """Run one batch of padding in the shape of `embed`, so that its graph is compiled."""
    shape = model.shape.interaction
    numeric, categorical = (shape.numeric, len(shape.categories)) if shape else (0, 0)
    size = (settings.sequences, settings.tokens)
    texts = Texts(
        ids=torch.full(size, model.pad, dtype=torch.int64),
        segments=torch.full(size, -1, dtype=torch.int64),
        positions=torch.zeros(size, dtype=torch.int64),
        place=torch.zeros(settings.texts, dtype=torch.int64),
        numeric=torch.zeros(settings.texts, numeric),
        categorical=torch.zeros(settings.texts, categorical, dtype=torch.int64),
    )
    model.eval()
    with torch.no_grad(), accelerator.autocast(settings.precision), model.cache_converted_weights():
        accelerator.fetch(accelerator.compile(_encode)(model, accelerator.send(texts)))
    model.train()
