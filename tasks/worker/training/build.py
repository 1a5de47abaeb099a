"""Build new models: from a pretrained folder, or from scratch with a tokenizer trained on the first run's texts."""

import re
from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer, normalizers
from tokenizers.normalizers import Lowercase
from transformers import AutoConfig, AutoModel, BertConfig, PretrainedConfig

from configs.schema.config import Config
from configs.schema.model import Prompts
from tasks.data.encoder_weights import OF_A_TASK
from tasks.data.encoders import TextShape
from tasks.data.pretrained import DENSE_WEIGHTS, Described
from tasks.data.rows import ITEM, QUERY
from tasks.foundation.errors import ConfigError
from tasks.planning.preflight_encoder import describe_encoder, pretrained_folder
from tasks.worker.model.embedding_model import EmbeddingModel
from tasks.worker.model.features import FeatureTable, fit_features
from tasks.worker.model.model_shape import ModelShape, shape_of
from tasks.worker.model.tokens import load_tokenizer, train_tokenizer
from tasks.worker.training.checkpoint import ModelParts, set_dropout
from tasks.worker.training.tokenised import lower_cases, own_settings, read_settings


def build_parts(config: Config, rows: Iterable[pa.Table]) -> ModelParts:
    """Return the first model of a lineage; the same configuration, seed and rows give the same weights.

    The rows are read more than once.

    Raises:
        ConfigError: the pretrained folder can't be used; names the missing part.
    """
    table = fit_features(rows, config.features)
    if config.model.pretrained is not None:
        return _from_pretrained(pretrained_folder(config.model.pretrained), config, table)
    return _from_scratch(config, rows, table)


def first_model(
    config: Config, encoder_config: PretrainedConfig, shape: ModelShape, described: Described | None
) -> EmbeddingModel:
    """Return a model with a lineage's initial weights: from the pretrained folder, the others drawn with the seed.

    Args:
        described: the pretrained folder, if any.

    Raises:
        OSError, ValueError, RuntimeError: the folder's weights can't be read, or have another shape.
        ConfigError: a tensor of the encoder is not in the folder, or has numbers that are not finite.
    """
    torch.manual_seed(config.seed)
    model = EmbeddingModel(encoder_config, shape)
    if described is not None:
        model.encoder.load_state_dict(_encoder_weights(described))
        for layer, of in zip(model.dense, described.dense_folders, strict=True):
            layer.load_state_dict({name.removeprefix("linear."): value for name, value in _dense_weights(of).items()})
    return model


def _encoder_weights(described: Described) -> dict[str, torch.Tensor]:
    """Return the encoder's weights, float32. The loader fills absent ones with random numbers, so it is asked which."""
    names = {f"^{re.escape(described.prefix)}": ""} if described.prefix else None
    saved, info = AutoModel.from_pretrained(
        described.encoder, local_files_only=True, dtype=torch.float32, key_mapping=names, output_loading_info=True
    )
    weights: dict[str, torch.Tensor] = saved.state_dict()
    missing = sorted(name for name in info["missing_keys"] if not OF_A_TASK.match(name))
    broken = sorted(name for name, weight in weights.items() if not weight.isfinite().all())
    if missing or broken:
        names_of, what = (missing, "not in its files") if missing else (broken, "not finite (NaN or infinite)")
        raise ConfigError(
            f"model.pretrained: {len(names_of)} of the {len(weights)} tensors of the encoder in {described.encoder} "
            f"are {what}, such as {names_of[0]}; copy the folder again, or give another one"
        )
    return weights


def _from_pretrained(folder: Path, config: Config, table: FeatureTable) -> ModelParts:
    described, text = describe_encoder(config, folder)
    tokenizer = load_tokenizer(described.encoder)
    settings = read_settings(described.encoder)
    if described.lower_case and not lower_cases(tokenizer):
        _lower_case(tokenizer)
    encoder_config = AutoConfig.from_pretrained(described.encoder, local_files_only=True)
    set_dropout(encoder_config, config.model.dropout)
    model = first_model(config, encoder_config, shape_of(config, encoder_config.hidden_size, table, text), described)
    if not described.normalized:
        print(f"{folder} gives vectors of any length; those trained from it have unit length", flush=True)
    return ModelParts(model, tokenizer, table, encoder_config, settings or own_settings(tokenizer))


def _lower_case(tokenizer: Tokenizer) -> None:
    """Lower-case texts before the tokenizer's own normalizer."""
    rest = tokenizer.normalizer
    tokenizer.normalizer = Lowercase() if rest is None else normalizers.Sequence([Lowercase(), rest])


def _dense_weights(folder: Path) -> dict[str, torch.Tensor]:
    path = next(folder / name for name in DENSE_WEIGHTS if (folder / name).is_file())
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True, map_location="cpu")


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
    text = TextShape(pooling=config.model.pooling or "mean", prompts=config.model.prompts or Prompts())
    model = first_model(config, encoder_config, shape_of(config, scratch.hidden_size, table, text), None)
    return ModelParts(model, tokenizer, table, encoder_config, own_settings(tokenizer))
