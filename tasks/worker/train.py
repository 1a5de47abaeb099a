"""train: goes on from the lineage's last checkpoint, over the batches of this run's spans, to the next one.

Killed anywhere and started again it ends with the same weights: its own newest checkpoint says at which step to go on.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from configs.schema import Config
from infra.manifest import read_manifest
from tasks.contracts import CheckpointRef, CheckpointState, TrainInputs, TrainOutcome
from tasks.errors import ConfigError, DataError
from tasks.worker.accelerators import Accelerator, open_accelerator
from tasks.worker.batches import PlannedBatch, make_batch, plan_batches
from tasks.worker.build import build_parts
from tasks.worker.checkpoint import (
    CheckpointWriter,
    ModelParts,
    checkpoint_prefix,
    find_partial,
    load_optimizer,
    load_parts,
)
from tasks.worker.embed import EmbedSettings
from tasks.worker.holdout import Holdout, make_holdout
from tasks.worker.job import Job
from tasks.worker.loop import LoopRecorder
from tasks.worker.model import shape_of
from tasks.worker.optimizer import make_optimizer
from tasks.worker.pairs import load_rows, make_pairs, split_holdout
from tasks.worker.step import TrainStep

# What model.scratch calls the sizes of the encoder, and what the encoder's own config calls them.
_ENCODER_SIZES = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "attention_heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
    "max_tokens": "max_position_embeddings",
}


@dataclass(frozen=True)
class Start:
    """Where a run begins: the model and optimiser on the device, the state, and the checkpoint they came from."""

    parts: ModelParts
    optimizer: torch.optim.AdamW
    state: CheckpointState
    checkpoint: CheckpointRef | None


def run(job: Job) -> TrainOutcome:
    """Train one run's spans.

    Raises:
        DataError: no row is left to train on.
        StoreError: the parent checkpoint is missing or corrupt; training never quietly starts over.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, TrainInputs)
    config = job.config
    with open_accelerator(config.accelerator, job.rank) as accelerator, contextlib.ExitStack() as closing:
        with job.clock.phase("restoring"):
            training, held = read_training_rows(job, inputs)
            start = find_start(job, inputs, accelerator, training)
        parts, state = start.parts, start.state
        pairs = make_pairs(training, parts, config)
        plan = plan_for(config, state.first_step, pairs.query.lengths, pairs.item.lengths)
        last_step = state.first_step + len(plan)
        precision = accelerator.choose_precision(config.train.precision)
        step = TrainStep(parts.model, start.optimizer, accelerator, config, precision)
        writer = CheckpointWriter(job.store, parts, start.optimizer)
        folder = closing.enter_context(job.scratch())
        recorder = LoopRecorder(job.spec, job.store, accelerator, parts, writer, state, last_step, folder)
        closing.callback(recorder.close)
        holdout = sample_holdout(held, parts, config)
        settings = holdout_settings(config, accelerator)

        seconds, rows = 0.0, 0
        recorder.holdout_if_due(state.step, holdout, settings)
        for global_step in range(state.step, last_step):
            began = time.monotonic()
            planned = plan[global_step - state.first_step]
            losses = step(make_batch(pairs, planned, job.rank).to(accelerator.device), global_step)
            recorder.losses_if_due(global_step + 1, losses)
            seconds += time.monotonic() - began
            rows += int((planned.rows >= 0).sum())
            recorder.holdout_if_due(global_step + 1, holdout, settings)
            recorder.checkpoint_if_due(global_step + 1)
        own = recorder.finish((*inputs.history, *inputs.rows), start.checkpoint if state.complete else None)
        checkpoint = _agree(accelerator, job, own, last_step)
    return TrainOutcome(
        checkpoint=checkpoint,
        model_version=f"{config.lineage}-{last_step:08d}-{checkpoint.sha256[:8]}",
        first_step=state.first_step,
        last_step=last_step,
        resumed_at_step=state.step if state.step > state.first_step else None,
        rows_trained=len(pairs),
        pairs_per_second=round(rows / seconds, 2) if seconds else 0.0,
        losses=tuple(recorder.losses),
        curve=tuple(recorder.curve),
        precision=precision,
    )


def read_training_rows(job: Job, inputs: TrainInputs) -> tuple[pa.Table, pa.Table]:
    """(rows to train on, holdout rows of these spans and all before). Raises DataError if none is to be trained on."""
    share = job.config.evaluate.holdout_share
    training, held = split_holdout(load_rows(job.store, inputs.rows, job.config), share)
    if not training.num_rows:
        raise DataError(f"span {job.spec.span.name}: all {held.num_rows} rows are held out, none is left to train on")
    if inputs.history:
        _, held_before = split_holdout(load_rows(job.store, inputs.history, job.config), share)
        held = pa.concat_tables([held_before, held], promote_options="permissive")
    return training, held


def find_start(job: Job, inputs: TrainInputs, accelerator: Accelerator, training: pa.Table) -> Start:
    """This run's own newest checkpoint if an earlier attempt left one, else the parent, else a new model.

    Every rank loads what rank 0 chose. Each source is logged; none is skipped because it is corrupt.
    """
    config = job.config
    first_step = inputs.parent.step if inputs.parent else 0
    partial = find_partial(job.store, config.lineage, job.spec.run_key, first_step) if job.rank.is_main else None
    step = int(accelerator.sum(torch.tensor(partial.step if partial else 0, device=accelerator.device)).item())
    if step:
        source: CheckpointRef | None = _ref(job, step)
        print(f"going on from this run's own checkpoint at step {step}", flush=True)
    elif inputs.parent is not None:
        source = inputs.parent
        print(f"starting from the lineage's checkpoint at step {source.step}", flush=True)
    else:
        source = None
        print("starting a new lineage", flush=True)
    parts = load_parts(job.store, source, config.model.dropout) if source else build_parts(config, training)
    _check_shape(parts, config)
    accelerator.place(parts.model)
    parts.model.train()
    optimizer = make_optimizer(parts.model, config.train)
    loaded = load_optimizer(job.store, source, parts.model, optimizer) if source else None
    if loaded is not None and step:
        return Start(parts, optimizer, loaded, source)
    state = CheckpointState(
        lineage=config.lineage,
        run_key=job.spec.run_key,
        step=first_step,
        first_step=first_step,
        complete=False,
        consumed=inputs.history,
        parent=inputs.parent,
        seed=config.seed,
        losses=(),
        curve=(),
    )
    return Start(parts, optimizer, state, source)


def _check_shape(parts: ModelParts, config: Config) -> None:
    encoder, table, scratch = parts.encoder_config, parts.features, config.model.from_scratch
    asked = shape_of(config, encoder.hidden_size, table).model_dump()
    held = parts.model.shape.model_dump()
    if scratch is not None:
        asked |= {ours: getattr(scratch, ours) for ours in _ENCODER_SIZES}
        held |= {ours: getattr(encoder, theirs, None) for ours, theirs in _ENCODER_SIZES.items()}
    asked["features"] = (config.features.numeric, config.features.categorical, config.features.query)
    held["features"] = (tuple(table.numeric), tuple(table.categorical), table.query)
    if differing := [name for name in asked if asked[name] != held[name]]:
        name = differing[0]
        raise ConfigError(
            f"lineage {config.lineage} has {name} {held[name]!r}, the configuration asks for {asked[name]!r}; "
            "put it back, or begin another lineage with --set lineage=NAME"
        )


def plan_for(
    config: Config, first_step: int, query_lengths: np.ndarray, item_lengths: np.ndarray
) -> list[PlannedBatch]:
    """The batch plan of a run; the first step stands for the spans, so that no two runs shuffle alike."""
    train = config.train
    seed = config.seed + first_step
    return plan_batches(query_lengths, item_lengths, train.shapes, train.batch_rows, train.epochs, seed)


def sample_holdout(held: pa.Table, parts: ModelParts, config: Config) -> Holdout:
    """The newest `train.evaluate_rows` holdout rows, to be found among their own items."""
    newest = held.slice(max(0, held.num_rows - config.train.evaluate_rows))
    return make_holdout(newest, newest, parts, config)


def holdout_settings(config: Config, accelerator: Accelerator) -> EmbedSettings:
    """Evaluation in the loop embeds with inference's shapes and training's precision."""
    precision = accelerator.choose_precision(config.train.precision)
    return EmbedSettings(config.infer.batch_rows, config.infer.token_rungs, precision)


def _ref(job: Job, step: int) -> CheckpointRef:
    prefix = checkpoint_prefix(job.config.lineage, step)
    return CheckpointRef(prefix=prefix, step=step, sha256=read_manifest(job.store, prefix).sha256)


def _agree(accelerator: Accelerator, job: Job, checkpoint: CheckpointRef | None, last_step: int) -> CheckpointRef:
    """Rank 0 has written the checkpoint; the others wait for it and read which one it is."""
    accelerator.barrier()
    return checkpoint or _ref(job, last_step)
