"""The model: a Hugging Face text encoder, pooling, feature interaction, and heads for several tasks.

It knows nothing of devices, workers or files; `build.py` makes a model and `checkpoint.py` saves it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AutoModel, PretrainedConfig

from configs.schema.config import Config
from tasks.foundation.records import Record
from tasks.worker.model.features import FeatureTable
from tasks.worker.model.interaction import Interaction

MASKED = -1e4  # far below any attention score, and representable in bf16; -inf would make padding rows NaN


class InteractionShape(Record):
    """The arguments of `Interaction`."""

    text_width: int
    numeric: int
    categories: list[int]
    kind: Literal["explicit", "implicit", "both"]
    cross_layers: int
    deep_widths: list[int]
    categorical_width: int
    output_width: int


class ModelShape(Record):
    """What the shapes of the weights depend on, with the encoder's own config. Saved in every checkpoint."""

    pooling: Literal["mean", "cls"]
    width: int
    interaction: InteractionShape | None
    classifier: Literal["query", "pair"] | None


def shape_of(config: Config, text_width: int, features: FeatureTable) -> ModelShape:
    """Return the shape of a configuration, on an encoder of `text_width`."""
    model, head = config.model, config.heads.classification
    width = model.embedding_width or text_width
    interaction = None
    if model.interaction.kind != "none":
        interaction = InteractionShape(
            text_width=text_width,
            numeric=len(features.numeric),
            categories=features.categories,
            kind=model.interaction.kind,
            cross_layers=model.interaction.cross_layers,
            deep_widths=list(model.interaction.deep_widths),
            categorical_width=model.interaction.categorical_width,
            output_width=width,
        )
    return ModelShape(
        pooling=model.pooling, width=width, interaction=interaction, classifier=head.input if head else None
    )


@dataclass(frozen=True)
class Texts:
    """One side of a batch: `ids` int64 (B, T); `numeric` float32 (B, N); `categorical` int64 (B, C)."""

    ids: torch.Tensor
    numeric: torch.Tensor
    categorical: torch.Tensor

    def to(self, device: torch.device) -> Texts:
        return Texts(self.ids.to(device), self.numeric.to(device), self.categorical.to(device))


class EmbeddingModel(nn.Module):
    """Texts with features -> unit vectors, and the classification head on top of them."""

    def __init__(self, encoder_config: PretrainedConfig, shape: ModelShape) -> None:
        super().__init__()
        self.encoder = AutoModel.from_config(encoder_config, attn_implementation="sdpa")
        self.shape = shape
        self.width = shape.width
        self.pad: int = encoder_config.pad_token_id or 0
        text_width: int = encoder_config.hidden_size
        self.interaction: Interaction | None = None
        self.projection: nn.Linear | None = None
        if shape.interaction is not None:
            self.interaction = Interaction(**shape.interaction.model_dump())
        elif shape.width != text_width:
            self.projection = nn.Linear(text_width, shape.width, bias=False)
        self.classifier: nn.Linear | None = None
        if shape.classifier is not None:
            self.classifier = nn.Linear(shape.width if shape.classifier == "query" else 3 * shape.width, 2)

    def forward(self, texts: Texts) -> torch.Tensor:
        """Return unit vectors, float32 (B, E); a row of padding alone gives a finite vector without a meaning."""
        real = texts.ids != self.pad
        # Additive, and of the shape that attention adds it in: nothing is left for each layer to convert.
        mask = torch.zeros(real.shape, device=real.device).masked_fill_(~real, MASKED)[:, None, None, :]
        hidden = self.encoder(input_ids=texts.ids, attention_mask=mask).last_hidden_state.float()
        with torch.autocast(hidden.device.type, enabled=False):
            if self.shape.pooling == "cls":
                pooled = hidden[:, 0]
            else:
                weights = real.unsqueeze(-1).float()
                pooled = (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1.0)
            if self.interaction is not None:
                pooled = self.interaction(pooled, texts.numeric, texts.categorical)
            elif self.projection is not None:
                pooled = self.projection(pooled)
            return F.normalize(pooled, dim=1)

    def classify(self, query: torch.Tensor, item: torch.Tensor) -> torch.Tensor:
        """Return logits of the two classes, float32 (B, 2), from unit vectors (B, E)."""
        assert self.classifier is not None
        if self.shape.classifier == "query":
            return self.classifier(query)
        return self.classifier(torch.cat([query, item, query * item], dim=1))
