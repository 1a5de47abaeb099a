"""Texts embedded by the pipeline's own model, as evaluate and infer embed them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.devices.base import Precision
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.model.features import Side, encode_features
from tasks.worker.model.tokens import tokenize
from tasks.worker.process.job import Rank
from tasks.worker.training.checkpoint import ModelParts


def embed_texts(
    parts: ModelParts, config: Config, texts: Sequence[str], side: Side, precision: Precision = "fp32"
) -> np.ndarray:
    """Unit vectors, float32 (texts, width), with the prompt of the side and without features."""
    prompt = getattr(parts.model.shape.prompts, side)
    tokens = tokenize(parts.tokenizer, texts, config.infer.max_tokens, parts.model.pad, prompt)
    features = encode_features(parts.features, pa.table({"text": texts}), side)
    with open_accelerator("cpu", Rank(0, 1, 0)) as accelerator:
        return embed(parts.model, accelerator, tokens, features, embed_settings(config, accelerator, precision))
