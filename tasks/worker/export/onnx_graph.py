"""Writes a model's exports: one graph from tokens and features to unit vectors, for onnxruntime.

Transformer, pooling, dense layers, the interaction with features, normalisation; for any number of texts of any length.
torch's own exporter makes it, and onnxruntime's quantizer a smaller one with weights in int8.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from configs.schema.stages import ExportKind
from tasks.foundation.errors import ConfigError
from tasks.worker.model import tokens
from tasks.worker.model.embedding_model import MASKED, EmbeddingModel
from tasks.worker.online.export_folder import (
    ABOUT,
    CATEGORICAL,
    FOLDER,
    GRAPH,
    IDS,
    MASK,
    NUMERIC,
    VECTORS,
    ExportAbout,
)
from tasks.worker.training.checkpoint import ModelParts

PACKAGES = ("onnx", "onnxruntime", "onnxscript")  # the extra `export`
MOST_BYTES = 2**31 - 2**20  # bytes of weights: protobuf, the format of a graph, ends at 2 GiB
OPSET = 20  # has GELU, and every released onnxruntime since 1.17 knows it


class ExportRefused(Exception):
    """This model can't be exported so; the sentence has the reason."""


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

    Args:
        max_tokens: tokens after which a text is cut.
        widths: trained Matryoshka widths below the full width.

    Returns:
        The kinds that can't be made, each with the reason; they leave nothing in the folder.

    Raises:
        ConfigError: a package of the extra `export` is missing.
    """
    if not kinds:
        return {}
    _expect_packages()
    plain, refused = folder / FOLDER / "onnx" / GRAPH, dict[ExportKind, str]()
    try:
        _write_graph(parts.model, plain)
    except ExportRefused as error:
        return dict.fromkeys(kinds, str(error))
    for kind in kinds:
        own = folder / FOLDER / kind
        own.mkdir(exist_ok=True)
        if kind == "onnx-int8":
            _quantize(plain, own / GRAPH)
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
    if "onnx" not in kinds:
        plain.unlink()
        plain.parent.rmdir()
    return refused


def _expect_packages() -> None:
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"release.exports needs {', '.join(missing)}, which the worker's machine lacks: pip install "
            "'millrace[export]', or take release.exports out"
        )


def _write_graph(model: EmbeddingModel, file: Path) -> None:
    """Write the graph. Raises ExportRefused: it is too large, or has an operation that ONNX lacks."""
    size = sum(each.numel() * each.element_size() for each in model.parameters())
    if size > MOST_BYTES:
        raise ExportRefused(f"its weights have {size / 2**30:.1f} GiB, and a graph in one file holds up to 2 GiB")
    any_number = torch.export.Dim.DYNAMIC
    given = {name: torch.ones(2, 8, dtype=torch.int64) for name in (IDS, MASK)}  # the same tensor would be one input
    shapes: dict[str, Any] = {name: {0: any_number, 1: any_number} for name in given}
    if (shape := model.shape.interaction) is not None:
        given[NUMERIC] = torch.zeros(2, shape.numeric)
        given[CATEGORICAL] = torch.zeros(2, len(shape.categories), dtype=torch.int64)
        shapes |= {name: {0: any_number} for name in (NUMERIC, CATEGORICAL)}
    was_training, said = model.training, logging.getLogger("torch.onnx")
    before = said.level
    model.eval()
    said.setLevel(logging.ERROR)  # else a line for each operation of torchvision, which is not here
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's, about its own code
            made = torch.onnx.export(
                TextsGraph(model).eval(), (), kwargs=given, input_names=list(given), output_names=[VECTORS],
                dynamic_shapes=shapes, opset_version=OPSET, dynamo=True, verbose=False,
            )  # fmt: skip
    except Exception as error:  # the exporter raises many kinds for what it can't trace
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ExportRefused(f"torch's exporter can't trace its encoder: {reason}") from error
    finally:
        said.setLevel(before)
        model.train(was_training)
    assert made is not None
    _save(made.model_proto, file)


def _save(graph: Any, file: Path) -> None:
    """Write a graph without the exporter's notes: they hold paths of this machine."""
    for part in _parts(graph.graph):
        del part.metadata_props[:]
        part.ClearField("doc_string")
    del graph.metadata_props[:]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(graph.SerializeToString(deterministic=True))


def _parts(graph: Any) -> Iterator[Any]:
    yield from (graph, *graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output)


def _quantize(plain: Path, file: Path) -> None:
    """Write the graph with the weights of its matrix products in int8; activations are quantized as they come."""
    quantization: Any = importlib.import_module("onnxruntime.quantization")
    root, said = logging.getLogger(), logging.getLogger().level
    root.setLevel(logging.ERROR)  # else it advises a preparation that the exporter has done
    try:
        quantization.quantize_dynamic(plain, file, weight_type=quantization.QuantType.QInt8, per_channel=True)
    finally:
        root.setLevel(said)
