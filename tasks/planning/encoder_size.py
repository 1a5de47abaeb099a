"""The size of the configured encoder: from its settings, or from the headers of its folder; no model is loaded."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from configs.schema.config import Config
from tasks.data.pretrained import describe, read_settings
from tasks.data.weight_files import count_numbers
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.planning.preflight_encoder import pretrained_folder

_NAMES = {  # names of a setting in config.json; the second ones are DistilBERT's
    "hidden": ("hidden_size", "dim"),
    "layers": ("num_hidden_layers", "n_layers"),
    "heads": ("num_attention_heads", "n_heads"),
    "intermediate": ("intermediate_size", "hidden_dim"),
}


class EncoderSize(Record):
    """The widths of an encoder, and its weights."""

    parameters: int
    hidden: int
    layers: int
    heads: int
    intermediate: int


def encoder_size(config: Config) -> EncoderSize | None:
    """Return the size of the configured encoder; None if its folder can't be read on this machine."""
    scratch = config.model.from_scratch
    if scratch is not None:
        hidden, wide = scratch.hidden_size, scratch.intermediate_size
        embeddings = (scratch.vocab_size + scratch.max_tokens + 2) * hidden + 2 * hidden
        layer = 4 * (hidden**2 + hidden) + 2 * hidden * wide + wide + hidden + 4 * hidden
        pooler = hidden**2 + hidden
        weights = embeddings + scratch.layers * layer + pooler
        return EncoderSize(
            parameters=weights,
            hidden=hidden,
            layers=scratch.layers,
            heads=scratch.attention_heads,
            intermediate=wide,
        )
    assert config.model.pretrained is not None
    try:
        folder = describe(pretrained_folder(config.model.pretrained)).encoder
        facts = read_settings(folder / "config.json")
        widths = {name: _setting(facts, names) for name, names in _NAMES.items()}
        return EncoderSize(parameters=_stored_weights(folder, facts), **widths)
    except (ConfigError, OSError, ValueError, KeyError, TypeError):  # preflight refuses it, if it is needed here
        return None


def _setting(facts: Mapping[str, Any], names: tuple[str, str]) -> int:
    return int(facts[names[0] if names[0] in facts else names[1]])


def _stored_weights(folder: Path, facts: Mapping[str, Any]) -> int:
    """Return the number of weights in a folder, by the headers of its files, or by their size without headers."""
    numbers = count_numbers(folder)
    if numbers is not None:
        return numbers
    each = 2 if str(facts.get("torch_dtype", facts.get("dtype"))) in ("float16", "bfloat16") else 4
    return sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin")) // each
