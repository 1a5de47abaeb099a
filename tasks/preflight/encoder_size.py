"""The size of an encoder, the operations and arithmetic of its products, and the vectors that a step gathers.

Operations follow Narayanan et al. 2021 (arXiv:2104.04473, section 3), without the head over a vocabulary: forward and
backward of a sequence are 72 L h^2 s (1 + s / 6h). Projections, heads and interactions are small beside them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from configs.instances import machine_of
from configs.schema.config import Config
from configs.schema.training import ContrastiveHead
from tasks.contracts.stages import Place, Stage
from tasks.data.pretrained import describe, read_settings
from tasks.data.weight_files import count_numbers
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.preflight.encoder import pretrained_folder

Work = Literal["train", "embed"]
Arithmetic = Literal["bf16", "fp32"]

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


def operations(size: EncoderSize, tokens: float, sequence: int, training: bool) -> float:
    """Return the operations (multiplications and additions) of an encoder over `tokens`.

    A token takes 8 h^2 in the attention's projections, 4 h i in the feed-forward part, 4 s h in the attention itself;
    the backward pass takes twice the forward pass.

    Args:
        sequence: s, tokens of a packed sequence, of which each attends to all.
        training: True for forward and backward.
    """
    hidden = size.hidden
    forward = tokens * size.layers * (8 * hidden**2 + 4 * hidden * size.intermediate + 4 * sequence * hidden)
    return 3 * forward if training else forward


def encoder_operations(config: Config, stage: Stage, size: EncoderSize, amount: float, text_tokens: float) -> float:
    """Return the operations of a stage's encoder.

    Args:
        amount: train: tokens with padding; infer: texts of `text_tokens` each.
    """
    tokens = amount if stage is Stage.train else amount * text_tokens
    return operations(size, tokens, sequence_of(config, stage), training=stage is Stage.train)


def sequence_of(config: Config, stage: Stage) -> int:
    """Return the tokens of a packed sequence in train or infer."""
    return config.train.sequence_tokens if stage is Stage.train else config.infer.sequence_tokens


def arithmetic_of(config: Config, work: Work, place: Place) -> Arithmetic:
    """Return the arithmetic of an encoder's products; `auto` is bf16, except on a processor, whose speed decides."""
    precision = config.infer.precision if work == "embed" else config.train.precision
    machine = machine_of(place.instance)
    if precision == "fp32":
        cast = config.compiler.auto_cast != "none" and machine is not None and machine.on_neuron
        return "bf16" if cast else "fp32"
    return "fp32" if precision == "auto" and machine is None else "bf16"


NUMBER_BYTES = 4  # vectors and losses are float32 in every precision


def gathered_bytes(head: ContrastiveHead | None, rows: int, negatives: int, width: int) -> int:
    """Return the bytes of the global batch's vectors that a step gathers; as many gradients are scattered back.

    The contrastive loss gathers all items, their hard negatives and, if symmetric, all queries; again at each
    narrower width.

    Args:
        rows: pairs of the global batch.
        negatives: hard negatives of each pair; 0 while a lineage has no release.
        width: numbers of an embedding.
    """
    if head is None:
        return 0
    return rows * (1 + negatives + head.symmetric) * (width + sum(head.matryoshka)) * NUMBER_BYTES
