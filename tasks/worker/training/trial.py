"""The trial run: every shape that training, evaluation and inference can meet, once or a few times.

It uses the same step, evaluation and checkpoint as training, on the run's own rows. Its numbers have no meaning.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from configs.schema.training import Shape
from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import ShapeTiming
from tasks.contracts.progress import report
from tasks.worker.accelerators import Accelerator
from tasks.worker.accelerators.base import Precision
from tasks.worker.model.embed import EmbedSettings, compile_rungs, embed_settings
from tasks.worker.process.job import Job
from tasks.worker.training.batches import PlannedBatch, make_batch
from tasks.worker.training.checkpoint import CheckpointWriter
from tasks.worker.training.holdout import judge, sample_holdout
from tasks.worker.training.pairs import first_rows, make_pairs
from tasks.worker.training.start import Start
from tasks.worker.training.step import TrainStep


@dataclass(frozen=True)
class Trial:
    """Seconds by shape, of an evaluation and of a checkpoint; the loss of every step; the holdout's metrics after."""

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
    training: Iterable[pa.Table],
    held: pa.Table,
    folder: Path,
) -> Trial:
    """Try every shape; `folder` is an empty local one for the checkpoint, which never reaches the workspace."""
    config, parts = job.config, start.parts
    pairs = make_pairs(first_rows(training, config.train.batch_rows), parts, config)
    step = TrainStep(parts.model, start.optimizer, accelerator, config, precision)
    rows = np.resize(np.arange(len(pairs)), config.train.batch_rows)
    shapes = config.train.shapes.shapes
    timings, losses = [], []
    for number, shape in enumerate(shapes):
        batches = (make_batch(pairs, PlannedBatch(shape, rows), job.rank) for _ in range(config.warmup.steps_per_shape))
        seconds, began = [], time.monotonic()
        accelerator.name_work(f"training step, {shape.query} x {shape.item} tokens")
        for batch in accelerator.feed(batches):
            losses.append(accelerator.fetch(step(batch, start.state.step)["loss"]).item())
            seconds.append(time.monotonic() - began)
            began = time.monotonic()
        step.take_losses()
        timings.append(_timing(shape, seconds))
        if job.rank.is_main:
            report("warmup", number + 1, len(shapes), f"{seconds[-1]:.2f} s a step")
    began = time.monotonic()
    accelerator.name_work("evaluation")
    holdout = sample_holdout(held, parts, config)
    judged = judge(parts, holdout, accelerator, embed_settings(config, accelerator, config.train.precision))
    validated = time.monotonic()
    for settings in _embeddings(config, accelerator):
        compile_rungs(parts.model, accelerator, settings)
    embedded = time.monotonic()
    accelerator.name_work("checkpoint")
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
    """Return how training, evaluate and infer embed; empty on devices without graphs, where shapes cost nothing."""
    if accelerator.graphs is None:
        return []
    inside = embed_settings(config, accelerator, config.train.precision)
    later = embed_settings(config, accelerator, config.infer.precision)
    return [inside] if inside.precision == later.precision else [inside, later]


def _timing(shape: Shape, seconds: list[float]) -> ShapeTiming:
    return ShapeTiming(
        query_tokens=shape.query,
        item_tokens=shape.item,
        first_step_seconds=round(seconds[0], 4),
        step_seconds=round(min(seconds), 4),
    )
