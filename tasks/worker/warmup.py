"""warmup: a short trial of the very training step at every rung of the ladder, with one validation and one checkpoint.

Shapes that do not fit and memory that runs out surface here, not an hour into training. All it makes is thrown away.
"""

from __future__ import annotations

import time

import numpy as np

from configs.schema import Shape
from infra.store import DirectoryStore
from tasks.contracts import CheckpointState, ShapeTiming, TrainInputs, WarmupInputs, WarmupOutcome
from tasks.progress import report
from tasks.worker.accelerators import open_accelerator
from tasks.worker.batches import PlannedBatch, make_batch
from tasks.worker.checkpoint import CheckpointWriter
from tasks.worker.holdout import judge
from tasks.worker.job import Job
from tasks.worker.pairs import make_pairs
from tasks.worker.step import TrainStep
from tasks.worker.train import find_start, holdout_settings, read_training_rows, sample_holdout

GIB = 2**30


def run(job: Job) -> WarmupOutcome:
    """Try every shape; the seconds of each first step hold what is paid once (allocation, kernels, graphs)."""
    inputs = job.spec.inputs
    assert isinstance(inputs, WarmupInputs)
    config = job.config
    trial = TrainInputs(rows=inputs.rows, history=(), parent=inputs.parent)
    with open_accelerator(config.accelerator, job.rank) as accelerator, job.scratch() as folder:
        with job.clock.phase("restoring"):
            training, held = read_training_rows(job, trial)
            start = find_start(job, trial, accelerator, training)
        parts = start.parts
        pairs = make_pairs(training, parts, config)
        precision = accelerator.choose_precision(config.train.precision)
        step = TrainStep(parts.model, start.optimizer, accelerator, config, precision)
        rows = np.resize(np.arange(len(pairs)), config.train.batch_rows)
        shapes = config.train.shapes.shapes
        timings = []
        with job.clock.phase("compiling"):
            for number, shape in enumerate(shapes):
                seconds = []
                for _ in range(config.warmup.steps_per_shape):
                    began = time.monotonic()
                    batch = make_batch(pairs, PlannedBatch(shape, rows), job.rank)
                    step(batch.to(accelerator.device), start.state.step)["loss"].item()
                    seconds.append(time.monotonic() - began)
                timings.append(_timing(shape, seconds))
                if job.rank.is_main:
                    report("warmup", number + 1, len(shapes), f"{seconds[-1]:.2f} s a step")
            began = time.monotonic()
            judge(parts, sample_holdout(held, parts, config), accelerator, holdout_settings(config, accelerator))
            validated = time.monotonic()
            _trial_checkpoint(CheckpointWriter(DirectoryStore(folder), parts, start.optimizer), start.state)
            saved = time.monotonic()
    return WarmupOutcome(
        device=accelerator.name,
        shapes=tuple(timings),
        validation_seconds=round(validated - began, 3),
        checkpoint_seconds=round(saved - validated, 3),
        peak_memory_gib=round(accelerator.peak_memory_bytes() / GIB, 3),
    )


def _timing(shape: Shape, seconds: list[float]) -> ShapeTiming:
    return ShapeTiming(
        query_tokens=shape.query,
        item_tokens=shape.item,
        first_step_seconds=round(seconds[0], 4),
        step_seconds=round(min(seconds), 4),
    )


def _trial_checkpoint(writer: CheckpointWriter, state: CheckpointState) -> None:
    writer.save(state)
    writer.wait()
