"""Many texts to vectors, fast: sorted by length, in batches of a few static shapes, shared among the workers.

The in-loop evaluation, evaluate and infer all embed through here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tasks.worker.accelerators import Accelerator
from tasks.worker.accelerators.base import Precision
from tasks.worker.features import FeatureArrays
from tasks.worker.model import EmbeddingModel, Texts
from tasks.worker.tokens import TokenLists


@dataclass(frozen=True)
class EmbedSettings:
    """How texts are grouped: rows of a batch, padded lengths (shortest first; the last one cuts), precision."""

    batch_rows: int
    rungs: Sequence[int]
    precision: Precision


def embed(
    model: EmbeddingModel,
    accelerator: Accelerator,
    tokens: TokenLists,
    features: FeatureArrays,
    settings: EmbedSettings,
    shared: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> np.ndarray:
    """Unit vectors, float32 (texts, width), in the order of `tokens`.

    Args:
        shared: the workers take turns at the batches and all get all vectors; otherwise this worker does all alone.
        progress: called with texts done and texts in all.
    """
    out = torch.zeros(len(tokens), model.width)
    order = np.argsort(tokens.lengths, kind="stable")
    starts = range(0, len(order), settings.batch_rows)
    index, world = (accelerator.rank.index, accelerator.rank.world) if shared else (0, 1)
    model.eval()
    with torch.inference_mode(), accelerator.autocast(settings.precision):
        for start in starts[index::world]:
            rows = order[start : start + settings.batch_rows]
            vectors = model(_batch(tokens, features, rows, settings).to(accelerator.device))
            out[torch.from_numpy(rows)] = vectors[: len(rows)].float().cpu()
            if progress is not None:
                progress(min(start + settings.batch_rows, len(order)), len(order))
    model.train()
    if shared and world > 1:
        out = accelerator.sum(out.to(accelerator.device)).cpu()
    return out.numpy()


def _batch(tokens: TokenLists, features: FeatureArrays, rows: np.ndarray, settings: EmbedSettings) -> Texts:
    longest = int(tokens.lengths[rows].max())
    width = next((rung for rung in settings.rungs if rung >= longest), settings.rungs[-1])
    padded = np.pad(rows, (0, settings.batch_rows - len(rows)), mode="edge")
    return Texts(
        ids=torch.from_numpy(tokens.padded(padded, width)),
        numeric=torch.from_numpy(features.numeric[padded]),
        categorical=torch.from_numpy(features.categorical[padded]),
    )
