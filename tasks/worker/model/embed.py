"""Many texts to vectors, fast: sorted by length, in batches of a few static shapes, shared among the workers.

The training loop, evaluate and infer all embed and classify with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from configs.schema.config import Config
from tasks.worker.accelerators import Accelerator
from tasks.worker.accelerators.base import Precision
from tasks.worker.model.embedding_model import EmbeddingModel, Texts
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.tokens import TokenLists


@dataclass(frozen=True)
class EmbedSettings:
    """How texts are grouped: rows of a batch, padded lengths (shortest first; the last one cuts), precision."""

    batch_rows: int
    rungs: Sequence[int]
    precision: Precision


def embed_settings(config: Config, accelerator: Accelerator, precision: Precision | Literal["auto"]) -> EmbedSettings:
    """Return inference's shapes in the given precision."""
    return EmbedSettings(config.infer.batch_rows, config.infer.token_rungs, accelerator.choose_precision(precision))


@dataclass(frozen=True)
class EmbedBatch:
    """`texts` of static shape; int64 `rows` of the output for its first texts, the others are padding."""

    rows: np.ndarray
    texts: Texts

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
        shared: the workers share the batches and all get all vectors; otherwise this worker embeds all texts.
        progress: called with the number of texts done and of all texts.
        only: the texts to embed, int64, ascending; None: all. The vectors of the others are zeros.
    """
    out = torch.zeros(len(tokens), model.width)
    order = np.argsort(tokens.lengths, kind="stable")
    if only is not None:
        order = order[np.isin(order, only)]
    starts = range(0, len(order), settings.batch_rows)
    index, world = (accelerator.rank.index, accelerator.rank.world) if shared else (0, 1)
    done = 0

    def batches() -> Iterator[EmbedBatch]:
        for start in starts[index::world]:
            rows = order[start : start + settings.batch_rows]
            yield EmbedBatch(rows, _batch(tokens, features, rows, settings))

    model.eval()
    with torch.no_grad(), accelerator.autocast(settings.precision):
        for batch in accelerator.feed(batches()):
            vectors = accelerator.fetch(model(batch.texts).float())
            out[torch.from_numpy(batch.rows)] = vectors[: len(batch.rows)]
            done += settings.batch_rows * world
            if progress is not None:
                progress(min(done, len(order)), len(order))
    model.train()
    return accelerator.sum(out).numpy() if shared else out.numpy()


def classify(
    model: EmbeddingModel, accelerator: Accelerator, query: np.ndarray, item: np.ndarray, settings: EmbedSettings
) -> np.ndarray:
    """Return probabilities of class 1, float32 (rows,), of unit vectors float32 (rows, width); not shared."""
    found = np.zeros(len(query), dtype=np.float32)
    with torch.no_grad():
        for start in range(0, len(query), settings.batch_rows):
            sides = [_padded(side[start : start + settings.batch_rows], settings.batch_rows) for side in (query, item)]
            logits = model.classify(*(torch.from_numpy(side).to(accelerator.device) for side in sides))
            probabilities = accelerator.fetch(logits.softmax(dim=1)[:, 1]).numpy()
            found[start : start + settings.batch_rows] = probabilities[: len(query) - start]
    return found


def compile_rungs(model: EmbeddingModel, accelerator: Accelerator, settings: EmbedSettings) -> None:
    """Run every shape of `embed` and `classify` once, on padding alone."""
    shape = model.shape.interaction
    numeric, categorical = (shape.numeric, len(shape.categories)) if shape else (0, 0)
    rows = settings.batch_rows
    model.eval()
    with torch.no_grad(), accelerator.autocast(settings.precision):
        for rung in settings.rungs:
            texts = Texts(
                ids=torch.full((rows, rung), model.pad, dtype=torch.int64),
                numeric=torch.zeros(rows, numeric),
                categorical=torch.zeros(rows, categorical, dtype=torch.int64),
            )
            accelerator.fetch(model(texts.to(accelerator.device)).float())
    model.train()
    if model.classifier is not None:
        nothing = np.zeros((rows, model.width), dtype=np.float32)
        classify(model, accelerator, nothing, nothing, settings)


def _padded(rows: np.ndarray, count: int) -> np.ndarray:
    return np.pad(rows, ((0, count - len(rows)), (0, 0)))


def _batch(tokens: TokenLists, features: FeatureArrays, rows: np.ndarray, settings: EmbedSettings) -> Texts:
    longest = int(tokens.lengths[rows].max())
    width = next((rung for rung in settings.rungs if rung >= longest), settings.rungs[-1])
    padded = np.pad(rows, (0, settings.batch_rows - len(rows)), mode="edge")
    return Texts(
        ids=torch.from_numpy(tokens.padded(padded, width)),
        numeric=torch.from_numpy(features.numeric[padded]),
        categorical=torch.from_numpy(features.categorical[padded]),
    )
