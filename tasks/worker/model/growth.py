"""New categories of a span: the model gets a row for each, before training goes on from the parent.

Nothing is random: any number of workers grows the same model.
"""

from collections.abc import Iterable

import pyarrow as pa
import torch
from torch import nn

from tasks.worker.model.embedding_model import EmbeddingModel
from tasks.worker.model.features import FIRST, NEVER_SEEN, FeatureTable, grown_features


def grow(model: EmbeddingModel, before: FeatureTable, training: Iterable[pa.Table]) -> FeatureTable:
    """Give the model an embedding for every category of the training rows; return its table, and log what is new.

    A new category starts as what it was until then, a category never seen, so no vector changes by growing.
    """
    after = grown_features(before, training)
    if model.interaction is None:
        return before
    for name, known in before.categorical.items():
        if new := len(after.categorical[name]) - len(known):
            print(f"{name} has {new} new categories, {len(after.categorical[name])} in all", flush=True)
    widen(model, before, after)
    return after


def widen(model: EmbeddingModel, before: FeatureTable, after: FeatureTable) -> None:
    """Give the model, whose table is `before`, an embedding for every category of `after`, which has grown from it."""
    if after == before or model.interaction is None or model.shape.interaction is None:
        return
    for place, (name, rows) in enumerate(zip(after.categorical, after.categories, strict=True)):
        weight = model.interaction.tables[place].weight
        assert isinstance(weight, torch.Tensor)
        wider = _with_rows(weight.detach(), rows, name, before)
        model.interaction.tables[place] = nn.Embedding.from_pretrained(wider, freeze=False)
    shape = model.shape.interaction.model_copy(update={"categories": after.categories})
    model.shape = model.shape.model_copy(update={"interaction": shape})


def _with_rows(weight: torch.Tensor, rows: int, name: str, before: FeatureTable) -> torch.Tensor:
    """Return (rows, width): the rows in use, then copies of the row of a category never seen."""
    used = FIRST + len(before.categorical[name])
    return torch.cat([weight[:used], weight[NEVER_SEEN].repeat(rows - used, 1)])
