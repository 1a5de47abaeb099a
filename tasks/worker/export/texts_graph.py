"""Writes a model's exports: one graph each from tokens and features to unit vectors, for other runtimes.

Transformer, pooling, dense layers, the interaction with features, normalisation; for any number of texts of any length.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import nn

from configs.schema.stages import ExportKind
from tasks.worker.model import tokens
from tasks.worker.model.embedding_model import MASKED, EmbeddingModel
from tasks.worker.online.export_folder import ABOUT, CATEGORICAL, FOLDER, IDS, MASK, NUMERIC, ExportAbout
from tasks.worker.online.kinds import ExportRefused, Source, expect_makers, file_of
from tasks.worker.training.checkpoint import ModelParts


class TextsGraph(nn.Module):
    """The model on texts in rows of their own, padded at the right, in place of packed ones."""

    def __init__(self, model: EmbeddingModel) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        numeric: torch.Tensor | None = None,
        categorical: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return unit vectors, float32 (B, E).

        Args:
            input_ids: int64 (B, T).
            attention_mask: int64 (B, T), 1 for tokens and 0 for padding.
            numeric: float32 (B, N), of a model with an interaction.
            categorical: int64 (B, C), likewise.
        """
        model, real = self.model, attention_mask > 0
        places = torch.arange(input_ids.shape[1], device=input_ids.device)
        apart = ~real[:, None, :] & (places[:, None] >= 0)  # (B, T, T)
        if model.causal:
            apart = apart | (places[:, None] < places)
        full = near = self._additive(apart)
        if model.reach is not None:
            near = self._additive(apart | ((places[:, None] - places).abs() > model.reach))
        hidden = model.encoder(
            input_ids=input_ids,
            attention_mask=model.for_layers(full, near),
            position_ids=places.expand_as(input_ids) + model.first_position,
        ).last_hidden_state
        pooled = torch.bmm(self._shares(real, places)[:, None], hidden)[:, 0]
        empty = pooled[:, :0]
        return model.finish(
            pooled, empty if numeric is None else numeric, empty.long() if categorical is None else categorical
        )

    def _additive(self, apart: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(apart, dtype=torch.float32).masked_fill(apart, MASKED)[:, None]

    def _shares(self, real: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """Return the weight of each token in its text's vector, float32 (B, T)."""
        lengths = real.sum(dim=1, keepdim=True)
        if self.model.shape.pooling == "cls":
            return ((places == 0) & real).float()
        if self.model.shape.pooling == "last":
            return (places == lengths - 1).float()
        return real.float() / lengths.clamp(min=1)


def write_exports(
    parts: ModelParts, version: str, max_tokens: int, widths: Sequence[int], kinds: Sequence[ExportKind], folder: Path
) -> dict[ExportKind, str]:
    """Write exports below `exports/` in a model's folder; the same model gives the same bytes.

    Of `neuron` it does so if the compiler of Neuron does; unproven.

    Args:
        max_tokens: tokens after which a text is cut.
        widths: trained Matryoshka widths below the full width.

    Returns:
        The kinds that can't be made, each with the reason; they leave nothing in the folder.

    Raises:
        ConfigError: a package is missing that makes one of them.
    """
    refused = dict[ExportKind, str]()
    for kind in kinds:
        expect_makers(kind)
    with tempfile.TemporaryDirectory(dir=folder) as scratch, _as_source(parts, max_tokens, Path(scratch)) as source:
        for kind in kinds:
            own = folder / FOLDER / kind
            own.mkdir(parents=True)
            try:
                file_of(kind).make(source, own)
            except ExportRefused as error:
                refused[kind] = str(error)
                shutil.rmtree(own)
                continue
            about = ExportAbout(
                kind=kind,
                model_version=version,
                width=parts.model.width,
                widths=tuple(widths),
                max_tokens=max_tokens,
                pad=parts.model.pad,
                prompts=parts.model.shape.prompts,
                features=parts.features,
            )
            (own / ABOUT).write_bytes(about.to_json())
            parts.tokenizer.save(str(own / tokens.FILE))
    return refused


@contextmanager
def _as_source(parts: ModelParts, max_tokens: int, scratch: Path) -> Iterator[Source]:
    """Have the model in evaluation, without gradients, for the block."""
    model, weights = parts.model, list(parts.model.parameters())
    learns, was_training = [each.requires_grad for each in weights], model.training
    given = {name: torch.ones(2, 8, dtype=torch.int64) for name in (IDS, MASK)}  # the same tensor would be one input
    if (shape := model.shape.interaction) is not None:
        given[NUMERIC] = torch.zeros(2, shape.numeric)
        given[CATEGORICAL] = torch.zeros(2, len(shape.categories), dtype=torch.int64)
    try:
        for each in weights:
            each.requires_grad_(False)
        yield Source(TextsGraph(model).eval(), given, max_tokens, scratch)
    finally:
        model.train(was_training)
        for each, before in zip(weights, learns, strict=True):
            each.requires_grad_(before)
