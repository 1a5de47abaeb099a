"""train: goes on from the lineage's last checkpoint, over the batches of this run's spans, to the next one.

Killed anywhere and started again it ends with the same weights: its own newest checkpoint says at which step to go on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from configs.schema import Config
from tasks.contracts import CheckpointRef, GraphUse, TrainInputs, TrainOutcome
from tasks.errors import CodeError, DataError
from tasks.worker import compile_cache
from tasks.worker.accelerators import Accelerator, open_accelerator
from tasks.worker.batches import Batch, Pairs, PlannedBatch, make_batch, plan_batches
from tasks.worker.checkpoint import CheckpointWriter, ModelParts
from tasks.worker.embed import EmbedSettings
from tasks.worker.holdout import Holdout, make_holdout
from tasks.worker.job import Job
from tasks.worker.loop import LoopRecorder
from tasks.worker.pairs import load_rows, make_pairs, split_holdout
from tasks.worker.start import find_source, load_model, make_start, ref_at
from tasks.worker.step import TrainStep
from tasks.worker.stop import StopRequest
from tasks.worker.watchdog import Watchdog


def run(job: Job) -> TrainOutcome:
    """Train one run's spans. No step for `train.hang_seconds` ends this process.

    Raises:
        CancelledError: SIGTERM came while training; the checkpoint of the last step is kept.
        DataError: no row is left to train on.
        StoreError: the parent checkpoint is missing or corrupt; training never quietly starts over.
        CompileError: a graph was met that warmup had not compiled, and `train.on_new_graph` is fail.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, TrainInputs)
    config = job.config
    with (
        open_accelerator(config.accelerator, job.rank, config, config.train.precision) as accelerator,
        contextlib.ExitStack() as closing,
    ):
        with job.clock.phase("restoring"):
            training, held = read_training_rows(job, inputs)
            compile_cache.expect(accelerator, job.store, inputs.compiled, config.train.on_new_graph)
            source = find_source(job, inputs, accelerator)
            parts = load_model(job, source, training)
            precision = accelerator.choose_precision(config.train.precision)
            start = make_start(job, inputs, source, parts, accelerator, precision)
        state = start.state
        pairs = make_pairs(training, parts, config)
        plan = plan_for(config, state.first_step, pairs.query.lengths, pairs.item.lengths)
        last_step = state.first_step + len(plan)
        step = TrainStep(parts.model, start.optimizer, accelerator, config, precision)
        writer = CheckpointWriter(job.store, parts, start.optimizer)
        folder = closing.enter_context(job.scratch())
        recorder = LoopRecorder(job.spec, job.store, accelerator, parts, writer, state, last_step, folder)
        closing.callback(recorder.close)
        holdout = sample_holdout(held, parts, config)
        settings = holdout_settings(config, accelerator)

        recorder.holdout_if_due(state.step, holdout, settings)
        seconds, rows, began = 0.0, 0, time.monotonic()
        remaining = plan[state.step - state.first_step :]
        fed = accelerator.feed(_batches(pairs, remaining, job))
        stop = StopRequest()
        with stop.held_back(), Watchdog(job, config.train.hang_seconds) as watchdog:
            for done, (planned, batch) in enumerate(zip(remaining, fed, strict=True), start=state.step + 1):
                shape = f"{planned.shape.query} x {planned.shape.item} tokens"
                accelerator.doing(f"step {done}, {shape}")
                step(batch, done - 1)
                watchdog.beat(f"step {done} ({shape})")
                recorder.losses_if_due(done, step, stop.asked)
                recorder.stop_if_agreed(done)
                rows += int((planned.rows >= 0).sum())
                if recorder.holdout_due(done) or recorder.checkpoint_due(done):
                    accelerator.synchronize()
                    seconds += time.monotonic() - began
                    recorder.holdout_if_due(done, holdout, settings)
                    watchdog.beat()
                    recorder.checkpoint_if_due(done)
                    watchdog.beat()
                    began = time.monotonic()
        own = recorder.finish((*inputs.history, *inputs.rows), start.checkpoint if state.complete else None)
        checkpoint = _agree(accelerator, job, own, last_step)
        graphs = graph_use(accelerator)
        if graphs is not None:
            job.clock.count_as("compiling", graphs.compile_seconds)
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
        graphs=graphs,
        environment=accelerator.variables,
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


def plan_for(
    config: Config, first_step: int, query_lengths: np.ndarray, item_lengths: np.ndarray
) -> list[PlannedBatch]:
    """The batch plan of a run; the first step stands for the spans, so that no two runs shuffle alike.

    Raises:
        CodeError: a batch has a shape that is not on the ladder; at run time it would be a recompilation.
    """
    train = config.train
    seed = config.seed + first_step
    plan = plan_batches(query_lengths, item_lengths, train.shapes, train.batch_rows, train.epochs, seed)
    for number, batch in enumerate(plan):
        if batch.shape not in train.shapes.shapes or len(batch.rows) != train.batch_rows:
            raise CodeError(
                f"batch {number} of the plan has {len(batch.rows)} rows of {batch.shape.query} x {batch.shape.item} "
                f"tokens, which is not on the ladder of train.shapes with train.batch_rows {train.batch_rows}"
            )
    return plan


def sample_holdout(held: pa.Table, parts: ModelParts, config: Config) -> Holdout:
    """The newest `train.evaluate_rows` holdout rows, to be found among their own items."""
    newest = held.slice(max(0, held.num_rows - config.train.evaluate_rows))
    return make_holdout(newest, newest, parts, config)


def holdout_settings(config: Config, accelerator: Accelerator) -> EmbedSettings:
    """Evaluation in the loop embeds with inference's shapes and training's precision."""
    precision = accelerator.choose_precision(config.train.precision)
    return EmbedSettings(config.infer.batch_rows, config.infer.token_rungs, precision)


def _batches(pairs: Pairs, plan: list[PlannedBatch], job: Job) -> Iterator[Batch]:
    for planned in plan:
        yield make_batch(pairs, planned, job.rank)


def graph_use(accelerator: Accelerator) -> GraphUse | None:
    """What the compile cache did for this process, also told in the log."""
    if accelerator.graphs is None:
        return None
    use = accelerator.graphs.use(accelerator.reads_graphs)
    print(use.sentence, flush=True)
    return use


def _agree(accelerator: Accelerator, job: Job, checkpoint: CheckpointRef | None, last_step: int) -> CheckpointRef:
    """Rank 0 has written the checkpoint; the others wait for it and read which one it is."""
    accelerator.barrier()
    return checkpoint or ref_at(job, last_step)
