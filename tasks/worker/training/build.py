"""New models: from a pretrained folder, or from scratch with a tokenizer trained on the texts of the first run."""

from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import torch
from transformers import AutoConfig, AutoModel, BertConfig

from configs.schema.config import Config
from tasks.data.rows import ITEM, QUERY
from tasks.foundation.errors import ConfigError
from tasks.preflight.encoder import pretrained_folder
from tasks.worker.model.embedding_model import EmbeddingModel, shape_of
from tasks.worker.model.features import FeatureTable, fit_features
from tasks.worker.model.tokens import load_tokenizer, train_tokenizer
from tasks.worker.training.checkpoint import ModelParts, set_dropout


def build_parts(config: Config, rows: Iterable[pa.Table]) -> ModelParts:
    """Return the first model of a lineage; the same configuration, seed and rows give the same weights.

    The rows are iterated over more than once.

    Raises:
        ConfigError: the pretrained folder can't be used; names what is missing.
    """
    table = fit_features(rows, config.features)
    torch.manual_seed(config.seed)
    if config.model.pretrained is not None:
        return _from_pretrained(pretrained_folder(config.model.pretrained), config, table)
    return _from_scratch(config, rows, table)


def _from_pretrained(folder: Path, config: Config, table: FeatureTable) -> ModelParts:
    if not (folder / "config.json").is_file():
        raise ConfigError(f"model.pretrained: {folder} has no config.json; give a local Hugging Face model folder")
    tokenizer = load_tokenizer(folder)
    encoder_config = AutoConfig.from_pretrained(folder, local_files_only=True)
    longest = config.longest_tokens
    if longest > encoder_config.max_position_embeddings:
        raise ConfigError(
            f"a text of {longest} tokens is longer than the {encoder_config.max_position_embeddings} positions of the "
            f"encoder in {folder}"
        )
    set_dropout(encoder_config, config.model.dropout)
    model = EmbeddingModel(encoder_config, shape_of(config, encoder_config.hidden_size, table))
    model.encoder.load_state_dict(AutoModel.from_pretrained(folder, local_files_only=True).state_dict())
    return ModelParts(model, tokenizer, table, encoder_config)


def _from_scratch(config: Config, rows: Iterable[pa.Table], table: FeatureTable) -> ModelParts:
    scratch = config.model.from_scratch
    assert scratch is not None  # the schema requires it
    texts = (text for column in (QUERY, ITEM) for some in rows for text in some[column].to_pylist())
    tokenizer = train_tokenizer(texts, scratch.vocab_size)
    encoder_config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=scratch.hidden_size,
        num_hidden_layers=scratch.layers,
        num_attention_heads=scratch.attention_heads,
        intermediate_size=scratch.intermediate_size,
        max_position_embeddings=scratch.max_tokens,
        architectures=["BertModel"],
    )
    set_dropout(encoder_config, config.model.dropout)
    model = EmbeddingModel(encoder_config, shape_of(config, scratch.hidden_size, table))
    return ModelParts(model, tokenizer, table, encoder_config)
