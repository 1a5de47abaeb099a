"""The memory of a training worker by part, from the settings, without loading a model; or as the last run measured it.

Activations follow Korthikanti et al. 2022 (arXiv:2205.05198, table 2), without recomputation: an upper bound, since
fused attention keeps less. Features, heads and projections are small beside the encoder, and left out.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import Field

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.outcomes import WarmupOutcome
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage, compute_of
from tasks.data.pretrained import describe, read_settings
from tasks.foundation.errors import ConfigError
from tasks.foundation.free_memory import free_host_bytes
from tasks.foundation.records import Record
from tasks.planning.preflight_encoder import pretrained_folder
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

GIB = 2**30
_PROCESS_GIB = 0.8  # Python, torch and transformers on a processor; docs/benchmarks.md, "Memory of training"
_MOST_HEADER_BYTES = 100_000_000  # limit of the safetensors format
# Names of the same setting in config.json; the second ones are DistilBERT's.
_HIDDEN, _LAYERS = ("hidden_size", "dim"), ("num_hidden_layers", "n_layers")
_HEADS, _WIDE = ("num_attention_heads", "n_heads"), ("intermediate_size", "hidden_dim")


class TrainMemory(Record):
    """The memory of one training worker, in GiB."""

    workers: int = Field(description="training workers; on a processor they share the memory of the machine")
    parameters: int = Field(description="weights of the encoder, in numbers")
    tokens: int = Field(description="tokens of a worker's batch, or of its part with GradCache, with padding")
    weights_gib: float = Field(description="weights, and their copy in bf16 if the arithmetic is bf16")
    gradients_gib: float = Field(description="gradients of all trained weights, GiB")
    optimizer_gib: float = Field(description="both moments of AdamW, in fp32")
    average_gib: float = Field(description="averaged weights of train.averaging; 0: none")
    activations_gib: float = Field(description="results of all layers that the backward pass reads; an upper bound")
    process_gib: float = Field(description="Python and its packages, in the memory of the host; 0 on a device")
    total_gib: float = Field(description="sum of the parts, GiB")
    measured_gib: float | None = Field(description="peak of the last run's warmup; null: none, or with other settings")
    measured_in: str | None = Field(description="key of that run")
    free_gib: float | None = Field(description="free memory of this machine; null: the workers run elsewhere")

    @property
    def needed_gib(self) -> float:
        """The measured or else the estimated memory of all workers together."""
        return self.workers * (self.measured_gib or self.total_gib)

    @property
    def is_short(self) -> bool:
        """True if the free memory of this machine is less."""
        return self.free_gib is not None and self.needed_gib > self.free_gib


class EncoderSize(NamedTuple):
    """The widths of an encoder, and its weights."""

    parameters: int
    hidden: int
    layers: int
    heads: int
    intermediate: int


def train_memory(store: Store, plan: RunPlan, tokens_a_row: float) -> TrainMemory | None:
    """Return the memory of a training worker; None without a training, or if the encoder is not on this machine.

    Args:
        tokens_a_row: expected tokens of a row's texts.
    """
    config = plan.config
    size = encoder_size(config) if plan.window else None
    if size is None:
        return None
    on_host = config.accelerator == "cpu"
    number = 4 if _in_fp32(config) else 2  # bytes of an activation
    stored = 2 if config.train.precision == "bf16-weights" else 4  # bytes of a weight and of its gradient
    copied = 2 if number == 2 and stored == 4 else 0
    tokens = tokens_in_memory(config, tokens_a_row)
    parts = {
        "weights_gib": size.parameters * (stored + copied) / GIB,
        "gradients_gib": size.parameters * stored / GIB,
        "optimizer_gib": size.parameters * 8 / GIB,
        "average_gib": size.parameters * 4 / GIB if config.train.averaging else 0.0,
        "activations_gib": activation_bytes(size, tokens, config.train.sequence_tokens, number) / GIB,
        "process_gib": _PROCESS_GIB if on_host else 0.0,
    }
    measured, measured_in = _measured(store, plan)
    return TrainMemory(
        workers=config.train.workers,
        parameters=size.parameters,
        tokens=tokens,
        **{name: round(gib, 3) for name, gib in parts.items()},
        total_gib=round(sum(parts.values()), 3),
        measured_gib=measured,
        measured_in=measured_in,
        free_gib=round(free_host_bytes() / GIB, 3) if on_host and compute_of(config, Stage.train) == "local" else None,
    )


def activation_bytes(size: EncoderSize, tokens: int, sequence: int, number: int) -> int:
    """Return the bytes of all layers' activations.

    A layer keeps s*b*h*(34 + 5*a*s/h) bytes at 2 bytes a number: s*b tokens, h hidden, a heads. Of the 34, 16 are of a
    feed-forward part of 4*h, which is written here as 4*i/h for a width of i.

    Args:
        tokens: s*b, tokens of all sequences together.
        sequence: s, tokens of a sequence.
        number: bytes of an activation.
    """
    hidden = size.hidden
    a_token = hidden * 18 + 4 * size.intermediate + 5 * size.heads * sequence
    return tokens * size.layers * a_token * number // 2


def tokens_in_memory(config: Config, tokens_a_row: float) -> int:
    """Return the tokens that a worker computes at once, in whole sequences."""
    train = config.train
    if train.sequences is not None:
        sequences = train.sequences // train.workers
    else:
        sequences = math.ceil(train.batch_rows / train.workers * tokens_a_row / train.sequence_tokens)
    return math.ceil(sequences / train.gradcache_chunks) * train.sequence_tokens


def encoder_size(config: Config) -> EncoderSize | None:
    """Return the size of the configured encoder; None if its folder can't be read on this machine."""
    scratch = config.model.from_scratch
    if scratch is not None:
        hidden, wide = scratch.hidden_size, scratch.intermediate_size
        embeddings = (scratch.vocab_size + scratch.max_tokens + 2) * hidden + 2 * hidden
        layer = 4 * (hidden**2 + hidden) + 2 * hidden * wide + wide + hidden + 4 * hidden
        pooler = hidden**2 + hidden
        weights = embeddings + scratch.layers * layer + pooler
        return EncoderSize(weights, hidden, scratch.layers, scratch.attention_heads, wide)
    assert config.model.pretrained is not None
    try:
        folder = describe(pretrained_folder(config.model.pretrained)).encoder
        facts = read_settings(folder / "config.json")
        widths = (_setting(facts, names) for names in (_HIDDEN, _LAYERS, _HEADS, _WIDE))
        return EncoderSize(_stored_weights(folder, facts), *widths)
    except (ConfigError, OSError, ValueError, KeyError, TypeError):  # preflight refuses it, if it is needed here
        return None


def _setting(facts: Mapping[str, Any], names: tuple[str, str]) -> int:
    return int(facts[names[0] if names[0] in facts else names[1]])


def _stored_weights(folder: Path, facts: Mapping[str, Any]) -> int:
    """Return the number of weights in a folder, by the headers of its files, or by their size without headers."""
    whole = folder / "model.safetensors"
    if files := [whole] if whole.is_file() else sorted(folder.glob("model-*.safetensors")):
        return sum(_weights_in(file) for file in files)
    each = 2 if str(facts.get("torch_dtype", facts.get("dtype"))) in ("float16", "bfloat16") else 4
    return sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin")) // each


def _weights_in(file: Path) -> int:
    """Return the number of weights by a safetensors header: its length in 8 bytes, then JSON."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        header = json.loads(opened.read(min(length, _MOST_HEADER_BYTES)))
    return sum(math.prod(each["shape"]) for name, each in header.items() if name != "__metadata__")


def _in_fp32(config: Config) -> bool:
    """Return True if activations are fp32. `auto` on a processor counts as fp32, the larger; devices have fast bf16."""
    precision = config.train.precision
    return precision == "fp32" or (precision == "auto" and config.accelerator == "cpu")


def _measured(store: Store, plan: RunPlan) -> tuple[float | None, str | None]:
    """Return the peak of the lineage's last run, and its key; None for each if it had another model or batch."""
    if not plan.history:
        return None, None
    run = Run(Snapshot(store), plan.history[-1].prefix.split("/")[1])
    outcome = run.outcome(Stage.warmup)
    if run.plan is None or not isinstance(outcome, WarmupOutcome) or _kind(run.plan.config) != _kind(plan.config):
        return None, None
    return outcome.peak_memory_gib, run.run_key


def _kind(config: Config) -> tuple[Any, ...]:
    """Return the settings on which the memory depends, apart from the texts."""
    train = config.train
    batch = (train.workers, train.batch_rows, train.max_tokens, train.sequence_tokens, train.sequences)
    return (config.model, config.accelerator, *batch, train.gradcache_chunks, train.precision, train.averaging)
