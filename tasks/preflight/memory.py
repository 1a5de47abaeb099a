"""The memory of a training worker by part, from the settings, without loading a model; or as the last run measured it.

Activations follow Korthikanti et al. 2022 (arXiv:2205.05198, table 2), without recomputation: an upper bound on
a device, since fused attention keeps less. Features, heads and projections are small beside the encoder, and left out;
the logits of the contrastive loss are not, since they grow with the square of the batch.
"""

import math
from typing import Any

from pydantic import Field

from configs.instances import GIB, machine_of
from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.outcomes import WarmupOutcome
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Place, Stage, place_of
from tasks.foundation.process import free_host_bytes
from tasks.foundation.records import Record
from tasks.preflight.encoder_size import EncoderSize, arithmetic_of, encoder_size
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

# On a processor, measured with 14 million weights (docs/cost.md): Python, torch and transformers, in GiB; and the kept
# bytes as a share of the formula's. XLA on a processor computes bf16 in fp32, and keeps both.
_FORKED_GIB, _CPU_GIB, _XLA_GIB = 0.58, 0.86, 1.0
_KEPT = {("cpu", 2): 1.0, ("cpu", 4): 1.2, ("xla", 2): 3.0, ("xla", 4): 1.2}
_LOGITS_ON_CPU = 2.5  # bytes of the logits as a share of the formula's: torch keeps freed blocks, and splits them
_KEPT_WITH_DROPOUT = 1.45  # in bf16 on the cpu, where dropout has no fused layers


_PARTS = ("weights", "gradients", "optimizer", "average", "activations", "logits", "batch", "exchange", "process")
_LEAST_GIB = 0.05  # smaller parts are left out


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
    logits_gib: float = Field(description="contrastive loss: cosines of the batch's queries and items, 0 without it")
    batch_gib: float = Field(description="packed batch: tokens, positions, and the masks of sequences and of the loss")
    exchange_gib: float = Field(description="copy of all gradients that is summed over the workers; 0: one worker")
    process_gib: float = Field(description="Python and its packages, in the memory of the host; 0 on a device")
    total_gib: float = Field(description="largest sum of the parts at one time, GiB")
    measured_gib: float | None = Field(description="peak of the last run's warmup; null: none, or with other settings")
    measured_in: str | None = Field(description="key of that run")
    free_gib: float | None = Field(description="free memory of this machine; null: the workers run elsewhere")
    device_gib: float | None = Field(description="device memory of one worker; null: not known, as on a processor")

    @property
    def needed_gib(self) -> float:
        """The measured or else the estimated memory of all workers on this machine, or of one on its device."""
        one = self.measured_gib or self.total_gib
        return one if self.device_gib is not None else self.workers * one

    @property
    def there_gib(self) -> float | None:
        """The memory that must hold it; None if not known."""
        return self.device_gib if self.device_gib is not None else self.free_gib

    @property
    def is_short(self) -> bool:
        """True if there is less memory than needed."""
        return self.there_gib is not None and self.needed_gib > self.there_gib

    @property
    def way_out(self) -> str:
        """The settings that lower the largest part; empty if it fits."""
        if not self.is_short:
            return ""
        states = self.weights_gib + self.gradients_gib + self.optimizer_gib + self.average_gib
        if self.device_gib is not None and states > self.device_gib:
            return (
                "the weights and their optimizer alone do not fit: train.precision=bf16-weights, or a smaller encoder"
            )
        smaller = "lower train.batch_rows"
        if self.activations_gib > self.logits_gib:  # chunks share the encoder's work, not the loss's
            smaller = f"raise train.gradcache_chunks, or {smaller}"
        return smaller + ("" if self.device_gib is not None else ", train.workers")

    @property
    def sentence(self) -> str:
        """The memory, its largest parts, and a way out if there is less."""
        one = self.measured_gib or self.total_gib
        who = f"{self.workers} workers of " if self.workers > 1 else ""
        there = ""
        if self.device_gib is not None:
            there = f", of {self.device_gib:.1f} GiB on the device of each"
        elif self.free_gib is not None:
            there = f", of {self.free_gib:.1f} GiB free"
        if self.measured_gib is not None:
            basis = f"measured in run {self.measured_in}"
        else:
            parts = {name: getattr(self, f"{name}_gib") for name in _PARTS}
            largest = sorted((name for name in parts if parts[name] >= _LEAST_GIB), key=lambda name: -parts[name])
            basis = ", ".join(f"{name} {parts[name]:.1f}" for name in largest) or "all parts are small"
        sentence = f"{who}{'' if self.measured_gib else 'about '}{one:.1f} GiB{there}: {basis}"
        return f"{sentence}; more than there is: {self.way_out}" if self.is_short else sentence


def train_memory(store: Store, plan: RunPlan, tokens_a_row: float, place: Place | None = None) -> TrainMemory | None:
    """Return the memory of a training worker; None without a training, or if the encoder is not on this machine.

    Args:
        tokens_a_row: expected tokens of a row's texts.
        place: machines of the training; None: as configured.
    """
    config, place = plan.config, place or place_of(plan.config, Stage.train)
    size = encoder_size(config) if plan.window else None
    if size is None:
        return None
    machine, on_host = machine_of(place.instance), _on_processor(config, place)
    number = 2 if arithmetic_of(config, "train", place) == "bf16" else 4  # bytes of an activation
    stored = 2 if config.train.precision == "bf16-weights" else 4  # bytes of a weight and of its gradient
    copied = 2 if number == 2 and stored == 4 else 0
    tokens = tokens_in_memory(config, tokens_a_row, place.workers)
    sequence = config.train.sequence_tokens
    parts = {
        "weights_gib": size.parameters * (stored + copied) / GIB,
        "gradients_gib": size.parameters * stored / GIB,
        "optimizer_gib": size.parameters * 8 / GIB,
        "average_gib": size.parameters * 4 / GIB if config.train.averaging else 0.0,
        "activations_gib": activation_bytes(size, tokens, sequence, number) * _kept(config, on_host, number) / GIB,
        "logits_gib": logit_bytes(config, place.workers) * (_LOGITS_ON_CPU if on_host else 1.0) / GIB,
        "batch_gib": (tokens * (3 * 8 + sequence * number) + sum(logits_of_width(config, place.workers))) / GIB,
        "exchange_gib": size.parameters * stored / GIB if place.workers > 1 else 0.0,
        "process_gib": _process_gib(config, place) if on_host else 0.0,
    }
    measured, measured_in = _measured(store, plan, place)
    return TrainMemory(
        workers=place.workers,
        parameters=size.parameters,
        tokens=tokens,
        **{name: round(gib, 3) for name, gib in parts.items()},
        total_gib=round(_at_once(parts, config.train.gradcache_chunks), 3),
        measured_gib=measured,
        measured_in=measured_in,
        free_gib=round(free_host_bytes() / GIB, 3) if on_host and place.is_local else None,
        device_gib=round(machine.worker_bytes / GIB, 3) if machine is not None else None,
    )


def _at_once(parts: dict[str, float], chunks: int) -> float:
    """Return the largest sum of the parts at one time.

    The backward pass frees activations and logits before gradients are summed over the workers. With chunks, the loss
    is computed before the activations of the first chunk.
    """
    passing = parts["activations_gib"], parts["logits_gib"]
    rest = sum(parts.values()) - sum(passing) - parts["exchange_gib"]
    return rest + max(parts["exchange_gib"], max(passing) if chunks > 1 else sum(passing))


def _on_processor(config: Config, place: Place) -> bool:
    """Return True if the memory is that of a host: also for XLA on this machine, unless a kind of node is named."""
    here = config.accelerator == "xla" and place.is_local and config.health.machine is None
    return machine_of(place.instance) is None and (config.accelerator == "cpu" or here)


def _process_gib(config: Config, place: Place) -> float:
    if config.accelerator == "xla":
        return _XLA_GIB
    return _FORKED_GIB if place.is_local else _CPU_GIB


def _kept(config: Config, on_host: bool, number: int) -> float:
    """Return the bytes that the backward pass keeps, as a share of the formula's."""
    if not on_host:
        return 1.0
    if config.model.dropout and (config.accelerator, number) == ("cpu", 2):
        return _KEPT_WITH_DROPOUT
    return _KEPT[config.accelerator, number]


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


def logits_of_width(config: Config, workers: int) -> list[int]:
    """Return the logits of each softmax of a worker's contrastive loss at one width; empty without this loss."""
    head = config.heads.contrastive
    if head is None:
        return []
    pairs = config.train.batch_rows // workers * config.train.batch_rows
    negatives = head.negatives.per_query if head.negatives is not None else 0
    return [pairs * (1 + negatives), *([pairs] if head.symmetric else [])]


def logit_bytes(config: Config, workers: int) -> int:
    """Return the bytes of the contrastive loss's logits at their peak, in the backward pass.

    Each softmax keeps its result, 4 bytes a logit, until its own backward pass, the last softmax first; this one has
    two gradients of the same size beside it.
    """
    head = config.heads.contrastive
    widths = 1 + len(head.matryoshka) if head is not None else 0
    kept = most = 0
    for logits in logits_of_width(config, workers) * widths:
        kept += 4 * logits
        most = max(most, kept + 8 * logits)
    return most


def tokens_in_memory(config: Config, tokens_a_row: float, workers: int) -> int:
    """Return the tokens that a worker computes at once, in whole sequences."""
    train = config.train
    sequences = math.ceil(sequences_a_step(config, tokens_a_row) / workers)
    return math.ceil(sequences / train.gradcache_chunks) * train.sequence_tokens


def sequences_a_step(config: Config, tokens_a_row: float) -> int:
    """Return the packed sequences of the global batch."""
    train = config.train
    return train.sequences or math.ceil(train.batch_rows * tokens_a_row / train.sequence_tokens)


def _measured(store: Store, plan: RunPlan, place: Place) -> tuple[float | None, str | None]:
    """Return the peak of the lineage's last run, and its key; None for each if it had another model or batch."""
    if not plan.history:
        return None, None
    run = Run(Snapshot(store), plan.history[-1].run_key)
    outcome = run.outcome(Stage.warmup)
    if run.plan is None or not isinstance(outcome, WarmupOutcome) or _kind(run.plan.config) != _kind(plan.config):
        return None, None
    if place_of(run.plan.config, Stage.train) != place:
        return None, None
    return outcome.peak_memory_gib, run.run_key


def _kind(config: Config) -> tuple[Any, ...]:
    """Return the settings on which the memory depends, apart from the texts."""
    train = config.train
    batch = (train.workers, train.batch_rows, train.max_tokens, train.sequence_tokens, train.sequences)
    return (config.model, config.accelerator, *batch, train.gradcache_chunks, train.precision, train.averaging)
