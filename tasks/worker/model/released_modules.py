"""sentence-transformers modules for a model with feature interaction.

A released folder whose model has an interaction carries a copy of this file and of interaction.py, so that
`SentenceTransformer(path, trust_remote_code=True)` gives the pipeline's own vectors without the pipeline. Inputs are
strings, or dicts with `text` and any of the features: `{"text": "...", "price": 9.5, "locale": "de"}`. `encode_query`
leaves out the features that queries do not have.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers.sentence_transformer.modules import Transformer

from .interaction import Interaction


class FeatureTransformer(Transformer):
    """The text encoder; it also turns the features of dict inputs into `numeric` and `categorical` tensors."""

    table: dict[str, Any]

    def preprocess(self, inputs: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        records = [entry if isinstance(entry, dict) else {"text": entry} for entry in inputs]
        if kwargs.get("task") == "query":  # as `encode_query` says; training gave queries these features alone
            records = [{name: record.get(name) for name in ("text", *self.table["query"])} for record in records]
        features = super().preprocess([record["text"] for record in records], *args, **kwargs)
        features["numeric"] = torch.tensor([self._numeric(record) for record in records], dtype=torch.float32)
        features["categorical"] = torch.tensor([self._categorical(record) for record in records], dtype=torch.int64)
        return features

    def _numeric(self, record: dict[str, Any]) -> list[float]:
        scales = self.table["numeric"]
        values = {name: record.get(name) for name in scales}
        return [_scaled(value, scales[name]) for name, value in values.items()]

    def _categorical(self, record: dict[str, Any]) -> list[int]:
        found = []
        for name, values in self.table["categorical"].items():
            value = _name(record.get(name))
            # 0: absent, 1: a category never seen.
            found.append(0 if value is None else values.index(value) + 2 if value in values else 1)
        return found

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        super().save(output_path, *args, **kwargs)
        (Path(output_path) / "features.json").write_text(json.dumps(self.table, indent=2), encoding="utf-8")

    @classmethod
    def load(cls, model_name_or_path: str, *args: Any, **kwargs: Any) -> FeatureTransformer:
        module = super().load(model_name_or_path, *args, **kwargs)
        module.table = json.loads((Path(model_name_or_path) / "features.json").read_text(encoding="utf-8"))
        return module


def _scaled(value: Any, scale: dict[str, Any]) -> float:
    if value is None or value != value:
        return 0.0
    low, high = scale.get("low"), scale.get("high")
    value = value if low is None else max(value, low)
    value = value if high is None else min(value, high)
    return (value - scale["mean"]) / scale["deviation"]


def _name(value: Any) -> str | None:
    """A category as the training data names it: yes and no are `true` and `false`, and 5.0 is `5`."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value).removesuffix(".0")


class FeatureInteraction(torch.nn.Module):
    """Crosses the pooled text vector with the features; see interaction.py."""

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__()
        self.settings = settings
        self.interaction = Interaction(**settings)

    def forward(self, features: dict[str, Any]) -> dict[str, Any]:
        text = features["sentence_embedding"]
        features["sentence_embedding"] = self.interaction(text, features["numeric"], features["categorical"])
        return features

    def get_embedding_dimension(self) -> int:
        return int(self.settings["output_width"])

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        folder = Path(output_path)
        (folder / "config.json").write_text(json.dumps(self.settings, indent=2), encoding="utf-8")
        save_file(self.interaction.state_dict(), folder / "model.safetensors")

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> FeatureInteraction:
        folder = Path(model_name_or_path) / subfolder
        module = cls(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        module.interaction.load_state_dict(load_file(folder / "model.safetensors"))
        return module
