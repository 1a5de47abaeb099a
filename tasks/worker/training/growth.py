"""New categories of a span: the model gets a row for each, before training goes on from the parent.

Nothing is random: any number of workers grows the same model.
"""

from collections.abc import Iterable
from dataclasses import replace

import pyarrow as pa
import torch
from torch import nn

from tasks.worker.model.features import FeatureTable, grown_features
from tasks.worker.training.checkpoint import ModelParts


def grown(parts: ModelParts, training: Iterable[pa.Table]) -> ModelParts:
    """Return the model with an embedding for every category of the training rows; log how many are new.

    A new category starts as what it was until then, a category never seen, so no vector changes by growing.
    """
    before, after = parts.features, grown_features(parts.features, training)
    model = parts.model
    if after == before or model.interaction is None or model.shape.interaction is None:
        return parts
    for place, (name, rows) in enumerate(zip(after.categorical, after.categories, strict=True)):
        weight = model.interaction.tables[place].weight
        assert isinstance(weight, torch.Tensor)
        wider = _with_rows(weight.detach(), rows, name, before)
        model.interaction.tables[place] = nn.Embedding.from_pretrained(wider, freeze=False)
        if new := len(after.categorical[name]) - len(before.categorical[name]):
            print(f"{name} has {new} new categories, {len(after.categorical[name])} in all", flush=True)
    shape = model.shape.interaction.model_copy(update={"categories": after.categories})
    model.shape = model.shape.model_copy(update={"interaction": shape})
    return replace(parts, features=after)


def _with_rows(weight: torch.Tensor, rows: int, name: str, before: FeatureTable) -> torch.Tensor:
    """Return (rows, width): the rows in use, then copies of the row of a category never seen."""
    first = before.first(name)
    used = first + len(before.categorical[name])
    return torch.cat([weight[:used], weight[first - 1].repeat(rows - used, 1)])
