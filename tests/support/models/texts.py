"""Texts as the model gets them, from their token ids, and embedded as evaluate and infer embed them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.devices.base import Precision
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.model.embedding_model import Texts
from tasks.worker.model.features import FeatureArrays, Side, encode_features
from tasks.worker.model.packing import pack
from tasks.worker.model.tokens import tokenize
from tasks.worker.process.job import Rank
from tasks.worker.training.checkpoint import ModelParts


def packed(
    texts: Sequence[Sequence[int]], tokens: int, features: FeatureArrays | None = None, sequences: int | None = None
) -> Texts:
    """Texts of given ids in sequences of `tokens`; without features if there are none."""
    lengths = np.array([len(text) for text in texts], dtype=np.int64)
    ids = np.array([token for text in texts for token in text], dtype=np.int32)
    packing = pack(lengths, tokens, sequences)
    laid = packing.tokens(ids, np.cumsum(lengths) - lengths, tokens, 0)
    none = FeatureArrays(np.zeros((len(texts), 0), np.float32), np.zeros((len(texts), 0), np.int64))
    return Texts.of(packing, laid, features or none)


def embed_texts(
    parts: ModelParts, config: Config, texts: Sequence[str], side: Side, precision: Precision = "fp32"
) -> np.ndarray:
    """Unit vectors, float32 (texts, width), with the prompt of the side and without features."""
    prompt = getattr(parts.model.shape.prompts, side)
    tokens = tokenize(parts.tokenizer, texts, config.infer.max_tokens, parts.model.pad, prompt)
    features = encode_features(parts.features, pa.table({"text": texts}), side)
    with open_accelerator("cpu", Rank(0, 1, 0)) as accelerator:
        return embed(parts.model, accelerator, tokens, features, embed_settings(config, accelerator, precision))
