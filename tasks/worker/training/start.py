"""Start a training: from this run's newest checkpoint, the parent's, or a new model, moved to the device.

A new model is built from a pretrained folder, or from scratch with a tokenizer trained on the first run's texts. Warmup
starts in the same way, so that it meets the same graphs as training.
"""

import copy
import functools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig, AutoModel, BertConfig, PretrainedConfig

from configs.schema.config import Config
from configs.schema.model import Prompts
from infra.store.manifest import read_manifest
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import CheckpointRef, CheckpointState, HoldoutRule, Weights
from tasks.contracts.workspace import CHECKPOINT
from tasks.data.encoder_weights import OF_A_TASK
from tasks.data.pretrained import DENSE_WEIGHTS, Described, TextShape
from tasks.data.rows import ITEM, QUERY
from tasks.foundation.errors import ConfigError
from tasks.preflight.encoder import check_widths, describe_encoder, pretrained_folder
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.devices.base import Precision
from tasks.worker.model.embedding_model import EmbeddingModel, ModelShape, shape_of
from tasks.worker.model.features import FIRST, NEVER_SEEN, FeatureTable, can_extend, extend_features, fit_features
from tasks.worker.model.tokens import train_tokenizer
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import (
    ModelParts,
    find_partial,
    load_optimizer,
    load_parts,
    set_dropout,
    weights_on_host,
)
from tasks.worker.training.forgetting import RunningAverage, put_weights
from tasks.worker.training.optimizer import make_optimizer
from tasks.worker.training.tokenised import own_settings, read_settings, tokenizer_of
from tasks.worker.training.training_rows import TrainingRows, run_spares

MOST_TEXTS = 500_000  # from which a tokenizer is trained: more take a minute for each two million, on each worker


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
    tokenizer, settings = tokenizer_of(described), read_settings(described.encoder)
    encoder_config = AutoConfig.from_pretrained(described.encoder, local_files_only=True)
    set_dropout(encoder_config, config.model.dropout)
    model = first_model(config, encoder_config, shape_of(config, encoder_config.hidden_size, table, text), described)
    if not described.normalized:
        print(f"{folder} gives vectors of any length; those trained from it have unit length", flush=True)
    return ModelParts(model, tokenizer, table, encoder_config, settings or own_settings(tokenizer))


def _dense_weights(folder: Path) -> dict[str, torch.Tensor]:
    path = next(folder / name for name in DENSE_WEIGHTS if (folder / name).is_file())
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=True, map_location="cpu")


def _from_scratch(config: Config, rows: Iterable[pa.Table], table: FeatureTable) -> ModelParts:
    scratch = config.model.from_scratch
    assert scratch is not None  # the schema requires it
    tokenizer = train_tokenizer(_some_texts(rows), scratch.vocab_size)
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


def _some_texts(rows: Iterable[pa.Table]) -> Iterator[str]:
    """Yield the queries, then the items of the rows; of evenly spread ones if they are too many."""
    step = max(1, -(-2 * sum(table.num_rows for table in rows) // MOST_TEXTS))
    for column in (QUERY, ITEM):
        first = 0
        for table in rows:
            yield from table[column].take(pa.array(range(-first % step, table.num_rows, step), pa.int64())).to_pylist()
            first += table.num_rows


def grow_features(model: EmbeddingModel, before: FeatureTable, training: Iterable[pa.Table]) -> FeatureTable:
    """Give the model an embedding for every category of the training rows, and a scale to columns that were flat.

    Logs all new ones, and returns the grown table. A new category starts with the embedding of categories never seen,
    so it changes no vector.
    """
    if model.interaction is None:
        return before
    after = extend_features(before, training)
    for name, known in before.categorical.items():
        if new := len(after.categorical[name]) - len(known):
            print(f"{name} has {new} new categories, {len(after.categorical[name])} in all", flush=True)
    for name, scale in after.numeric.items():
        if scale != before.numeric[name]:
            print(f"{name} has values that differ for the first time, and is no longer always 0: {scale}", flush=True)
    widen_embeddings(model, before, after)
    return after


def widen_embeddings(model: EmbeddingModel, before: FeatureTable, after: FeatureTable) -> None:
    """Widen the model's embeddings from the categories of table `before` to the table `after`, which extends it."""
    if after == before or model.interaction is None or model.shape.interaction is None:
        return
    for place, (name, rows) in enumerate(zip(after.categorical, after.categories, strict=True)):
        weight = model.interaction.tables[place].weight
        assert isinstance(weight, torch.Tensor)
        wider = _with_rows(weight.detach(), rows, name, before)
        model.interaction.tables[place] = nn.Embedding.from_pretrained(wider, freeze=False)
    shape = model.shape.interaction.model_copy(update={"categories": after.categories})
    model.shape = model.shape.model_copy(update={"interaction": shape})


def _with_rows(weight: torch.Tensor, rows: int, name: str, before: FeatureTable) -> torch.Tensor:
    """Return (rows, width): the rows in use, then copies of the row for categories never seen."""
    used = FIRST + len(before.categorical[name])
    return torch.cat([weight[:used], weight[NEVER_SEEN].repeat(rows - used, 1)])


# Names of the encoder's sizes in `model.scratch` -> in the encoder's own config.
_ENCODER_SIZES = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_tokens": "max_position_embeddings",
}
_REF_NUMBERS = 1 + 32  # the step, and the bytes of the SHA-256


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint to start from, None for a new lineage; `own`: an earlier attempt of this run wrote it."""

    checkpoint: CheckpointRef | None
    own: bool


@dataclass(frozen=True)
class Start:
    """The start of a run: model and optimiser on the device, the state, and the checkpoint they came from.

    `average` is evaluated and released in place of the model; None: the model itself is.
    """

    parts: ModelParts
    average: RunningAverage | None
    optimizer: torch.optim.AdamW
    state: CheckpointState
    checkpoint: CheckpointRef | None

    @property
    def released(self) -> ModelParts:
        """The model that is evaluated and released."""
        return self.parts if self.average is None else replace(self.parts, model=self.average.model)

    @property
    def models(self) -> dict[str, nn.Module]:
        """Models that must be equal on all workers, by their names in messages."""
        return {"the model's": self.parts.model} | (
            {} if self.average is None else {"the average's": self.average.model}
        )


def find_resume_point(job: Job, inputs: TrainInputs, accelerator: Accelerator) -> ResumePoint:
    """Return on every rank the checkpoint that rank 0 chooses; a corrupt parent is never skipped."""
    config = job.config
    first_step = inputs.parent.step if inputs.parent else 0
    partial = find_partial(job.store, config.lineage, job.spec.run_key, first_step) if job.rank.is_main else None
    own = broadcast_checkpoint(job, partial, accelerator)
    return ResumePoint(own, own=True) if own is not None else ResumePoint(inputs.parent, own=False)


def broadcast_checkpoint(job: Job, named: CheckpointRef | None, accelerator: Accelerator) -> CheckpointRef | None:
    """Broadcast rank 0's checkpoint reference, or None, to every rank, without reading the store.

    Args:
        named: a checkpoint of this lineage; None on the other ranks.
    """
    numbers = [named.step, *bytes.fromhex(named.sha256)] if named is not None else [0] * _REF_NUMBERS
    step, *digest = accelerator.sum(torch.tensor(numbers, dtype=torch.int64)).tolist()
    if not any(digest):
        return None
    return CheckpointRef(
        prefix=CHECKPOINT.key(lineage=job.config.lineage, step=step), step=step, sha256=bytes(digest).hex()
    )


def load_model(job: Job, source: ResumePoint, training: TrainingRows, items: Weights | None = None) -> ModelParts:
    """Return the model of the checkpoint, or a new one, on the host; log its source.

    Args:
        items: the released model that embeds the items if queries alone are trained.

    Raises:
        StoreError: a checkpoint is missing or corrupt.
        ConfigError: the configured shape differs from the lineage's, or the model of the items reads texts otherwise.
    """
    config, checkpoint = job.config, source.checkpoint
    if checkpoint is None:
        print("starting a new lineage", flush=True)
        parts = build_parts(config, training)
    else:
        whose = "continuing from this run's own" if source.own else "starting from the lineage's"
        print(f"{whose} checkpoint at step {checkpoint.step}", flush=True)
        parts = load_parts(job.shared, checkpoint, config.model.dropout, weights="trained")
        if not source.own:  # its features have grown before
            new = training.where(functools.partial(can_extend, parts.features))
            parts = replace(parts, features=grow_features(parts.model, parts.features, new))
        parts.model.learn_scale(config.heads.learnt_scale)
    _check_shape(parts, config)
    return parts if items is None else replace(parts, items=_item_side(job, items, parts))


def _item_side(job: Job, items: Weights, parts: ModelParts) -> ModelParts:
    """Return the model that embeds the items, without dropout or gradients."""
    print(f"queries are trained to find the item vectors of {items.version}, which stay", flush=True)
    found = load_parts(job.shared, items.checkpoint)
    same = [(each.model.width, each.model.shape.prompts, each.tokenizer.to_str()) for each in (found, parts)]
    if same[0] != same[1]:
        raise ConfigError(
            f"train.sides queries: the released model {items.version} has another width, tokenizer or prompts than "
            f"lineage {job.config.lineage}, so its queries can't find those items; set train.sides=both"
        )
    found.model.requires_grad_(False)
    return found


def make_start(
    job: Job,
    inputs: TrainInputs,
    source: ResumePoint,
    parts: ModelParts,
    accelerator: Accelerator,
    precision: Precision,
) -> Start:
    """Move model and optimiser to the device, in the state that they have between two steps."""
    config = job.config
    average = _start_average(job, source, parts, accelerator)
    if precision == "bf16-weights":
        parts.model.keep_encoder_in_bf16()
    _check_types(parts.model, precision)
    for side in (ITEM, QUERY):
        accelerator.to_device(parts.of(side).model)
    parts.model.train()
    factors = {f"label_heads.{name}": each.learning_rate_factor for name, each in config.heads.of_labels.items()}
    if config.heads.classification is not None:
        factors["classifier"] = config.heads.classification.learning_rate_factor
    optimizer = make_optimizer(parts.model, config.train, accelerator, factors)
    first_step = inputs.parent.step if inputs.parent else 0
    state = CheckpointState(
        lineage=config.lineage,
        run_key=job.spec.run_key,
        step=first_step,
        first_step=first_step,
        complete=False,
        consumed=inputs.history,
        parent=inputs.parent,
        seed=config.seed,
        holdout=HoldoutRule.of(config.evaluate, (*inputs.history, *inputs.rows)),
        spared=run_spares(config, inputs),
        losses=(),
        curve=(),
    )
    if source.checkpoint is not None:
        loaded = load_optimizer(job.shared, source.checkpoint, parts.model, optimizer)
        spared = {name: groups for name, groups in loaded.spared.items() if name not in state.spared}
        state = loaded if source.own else state.model_copy(update={"spared": spared | state.spared})
    accelerator.settle(parts.model, optimizer)
    return Start(parts, average, optimizer, state, source.checkpoint)


def _start_average(job: Job, source: ResumePoint, parts: ModelParts, accelerator: Accelerator) -> RunningAverage | None:
    """Return the checkpoint's EMA on the device, in the state between two steps; None if not configured."""
    averaging = job.config.train.averaging
    if averaging is None or averaging.ema_half_life_steps is None:
        return None
    model = copy.deepcopy(parts.model).requires_grad_(False)
    if source.checkpoint is not None:
        model.load_state_dict(model.state_dict() | load_released_weights(job, source.checkpoint, parts))
    accelerator.to_device(model)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1)  # for compiled devices: the state after a step
    return RunningAverage(model, averaging.ema_half_life_steps, accelerator)


def load_released_weights(job: Job, checkpoint: CheckpointRef, parts: ModelParts) -> dict[str, torch.Tensor]:
    """Return a checkpoint's released weights, float32 on the host, widened to the categories of `parts`."""
    earlier = load_parts(job.shared, checkpoint)
    widen_embeddings(earlier.model, earlier.features, parts.features)
    return weights_on_host(earlier.model)


def load_initial_weights(
    job: Job, inputs: TrainInputs, parts: ModelParts, training: Iterable[pa.Table]
) -> dict[str, torch.Tensor] | None:
    """Return the initial weights of a run: its parent's released or the pretrained ones; None if they were random."""
    if inputs.parent is not None:
        return load_released_weights(job, inputs.parent, parts)
    if job.config.model.from_scratch is not None:
        return None
    return weights_on_host(build_parts(job.config, training).model)


def load_weights(job: Job, checkpoint: CheckpointRef, start: Start, accelerator: Accelerator) -> None:
    """Load the weights and the optimiser state of another checkpoint of this run."""
    trained = load_parts(job.shared, checkpoint, weights="trained")
    put_weights(start.parts.model, weights_on_host(trained.model), accelerator)
    if start.average is not None:
        put_weights(start.average.model, weights_on_host(load_parts(job.shared, checkpoint).model), accelerator)
    load_optimizer(job.shared, checkpoint, start.parts.model, start.optimizer)


def ref_at(job: Job, step: int) -> CheckpointRef:
    """Return a reference to the lineage's checkpoint at a step."""
    prefix = CHECKPOINT.key(lineage=job.config.lineage, step=step)
    return CheckpointRef(prefix=prefix, step=step, sha256=read_manifest(job.shared, prefix).sha256)


def _check_types(model: EmbeddingModel, precision: Precision) -> None:
    for name, weight in model.named_parameters():
        narrow = precision == "bf16-weights" and name.startswith("encoder.")
        wanted = torch.bfloat16 if narrow else torch.float32
        assert weight.dtype == wanted, f"{name} is {weight.dtype}; train.precision {precision} keeps it in {wanted}"


def _check_shape(parts: ModelParts, config: Config) -> None:
    encoder, table, scratch = parts.encoder_config, parts.features, config.model.from_scratch
    check_widths(config, parts.model.width)
    shape, model = parts.model.shape, config.model
    said = shape.model_copy(
        update={"pooling": model.pooling or shape.pooling, "prompts": model.prompts or shape.prompts}
    )
    wanted = shape_of(config, encoder.hidden_size, table, said).model_dump()
    held = parts.model.shape.model_dump()
    if scratch is not None:
        wanted |= {ours: getattr(scratch, ours) for ours in _ENCODER_SIZES}
        held |= {ours: getattr(encoder, theirs, None) for ours, theirs in _ENCODER_SIZES.items()}
    features = config.features
    wanted["features"] = (features.numeric, features.categorical, features.query, features.entity)
    held["features"] = (tuple(table.numeric), tuple(table.categorical), table.query, table.entity)
    if differing := [name for name in wanted if wanted[name] != held[name]]:
        name = differing[0]
        raise ConfigError(
            f"lineage {config.lineage} has {name} {held[name]!r}, the configuration has {wanted[name]!r}; "
            "restore it, or begin another lineage with --set lineage=NAME"
        )
