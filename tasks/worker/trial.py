"""The trial run: every shape that training, in-loop evaluation and inference can meet, once or a few times.

The same step, evaluation and checkpoint as in training, on the run's own rows. Its numbers mean nothing.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from configs.schema import Config, Shape
from infra.store import DirectoryStore
from tasks.contracts import ShapeTiming
from tasks.progress import report
from tasks.worker.accelerators import Accelerator
from tasks.worker.accelerators.base import Precision
from tasks.worker.batches import PlannedBatch, make_batch
from tasks.worker.checkpoint import CheckpointWriter
from tasks.worker.embed import EmbedSettings, compile_rungs
from tasks.worker.holdout import judge
from tasks.worker.job import Job
from tasks.worker.pairs import make_pairs
from tasks.worker.start import Start
from tasks.worker.step import TrainStep
from tasks.worker.train import holdout_settings, sample_holdout


@dataclass(frozen=True)
class Trial:
    """Seconds by shape, of a validation step and of a checkpoint; every step's loss; the holdout's metrics after."""

    shapes: tuple[ShapeTiming, ...]
    validation_seconds: float
    checkpoint_seconds: float
    losses: tuple[float, ...]
    metrics: dict[str, float]


def run_trial(
    job: Job,
    start: Start,
    accelerator: Accelerator,
    precision: Precision,
    training: pa.Table,
    held: pa.Table,
    folder: Path,
) -> Trial:
    """Try every shape; `folder` is an empty one for the checkpoint, which never comes near the workspace."""
    config, parts = job.config, start.parts
    pairs = make_pairs(training, parts, config)
    step = TrainStep(parts.model, start.optimizer, accelerator, config, precision)
    rows = np.resize(np.arange(len(pairs)), config.train.batch_rows)
    shapes = config.train.shapes.shapes
    timings, losses = [], []
    for number, shape in enumerate(shapes):
        batches = (make_batch(pairs, PlannedBatch(shape, rows), job.rank) for _ in range(config.warmup.steps_per_shape))
        seconds, began = [], time.monotonic()
        accelerator.doing(f"training step, {shape.query} x {shape.item} tokens")
        for batch in accelerator.feed(batches):
            losses.append(accelerator.fetch(step(batch, start.state.step)["loss"]).item())
            seconds.append(time.monotonic() - began)
            began = time.monotonic()
        step.take_losses()
        timings.append(_timing(shape, seconds))
        if job.rank.is_main:
            report("warmup", number + 1, len(shapes), f"{seconds[-1]:.2f} s a step")
    began = time.monotonic()
    accelerator.doing("evaluation")
    holdout = sample_holdout(held, parts, config)
    judged = judge(parts, holdout, accelerator, holdout_settings(config, accelerator))
    validated = time.monotonic()
    for settings in _embeddings(config, accelerator):
        compile_rungs(parts.model, accelerator, settings)
    embedded = time.monotonic()
    accelerator.doing("checkpoint")
    writer = CheckpointWriter(DirectoryStore(folder), parts, start.optimizer)
    writer.save(start.state)
    writer.wait()
    accelerator.cut()
    return Trial(
        shapes=tuple(timings),
        validation_seconds=round(validated - began, 3),
        checkpoint_seconds=round(time.monotonic() - embedded, 3),
        losses=tuple(losses),
        metrics=judged.metrics(holdout),
    )


def _embeddings(config: Config, accelerator: Accelerator) -> list[EmbedSettings]:
    """How training evaluates and how evaluate and infer embed; only compiled devices care for every single shape."""
    if accelerator.graphs is None:
        return []
    inside = holdout_settings(config, accelerator)
    later = EmbedSettings(
        config.infer.batch_rows, config.infer.token_rungs, accelerator.choose_precision(config.infer.precision)
    )
    return [inside] if inside.precision == later.precision else [inside, later]


def _timing(shape: Shape, seconds: list[float]) -> ShapeTiming:
    return ShapeTiming(
        query_tokens=shape.query,
        item_tokens=shape.item,
        first_step_seconds=round(seconds[0], 4),
        step_seconds=round(min(seconds), 4),
    )
