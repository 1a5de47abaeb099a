"""The trial run: a few training steps, then each computation of evaluation and inference once.

It uses the same step, evaluation and checkpoint as training, on the run's own rows. Its metrics are not meaningful.
"""

import time
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from tasks.contracts.runner import report
from tasks.contracts.usage import ShapeTiming
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.devices.base import Precision
from tasks.worker.model.embed import EmbedSettings, compile_embedding, embed_settings
from tasks.worker.process.job import Job
from tasks.worker.training.batches import BatchShape, make_batch, make_plan
from tasks.worker.training.checkpoint import CheckpointWriter
from tasks.worker.training.holdout import judge, sample_holdout
from tasks.worker.training.loop import TrainStep
from tasks.worker.training.pair_arrays import Pairs
from tasks.worker.training.resume import Start


@dataclass(frozen=True)
class Trial:
    """Seconds by shape, of an evaluation and of a checkpoint; the loss of every step; the final holdout metrics."""

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
    pairs: Pairs,
    shape: BatchShape,
    held: pa.Table,
    folder: Path,
) -> Trial:
    """Run every computation once; the checkpoint goes to `folder`, empty and local, not to the workspace."""
    config, parts = job.config, start.parts
    plan = make_plan(config, start.state.first_step, pairs)
    step = TrainStep(parts.model, start.optimizer, accelerator, config, precision, average=start.average)
    batches = (make_batch(pairs, plan.rows(0), plan.tokens, shape, job.rank) for _ in range(config.warmup.steps))
    losses, seconds, began = [], [], time.monotonic()
    accelerator.name_work(f"training step, {shape.sequences} x {shape.tokens} tokens")
    for number, batch in enumerate(accelerator.feed(batches), start=1):
        losses.append(accelerator.fetch(step(batch, start.state.step)["loss"]).item())
        seconds.append(time.monotonic() - began)
        began = time.monotonic()
        if job.rank.is_main:
            report("warmup", number, config.warmup.steps, f"{seconds[-1]:.2f} s a step")
    step.take_losses()
    began = time.monotonic()
    accelerator.name_work("evaluation")
    holdout = sample_holdout(held, parts, config)
    judged = judge(start.released, holdout, accelerator, embed_settings(config, accelerator, config.train.precision))
    validated = time.monotonic()
    for settings in _embeddings(config, accelerator):
        compile_embedding(start.released.model, accelerator, settings)
    embedded = time.monotonic()
    accelerator.name_work("checkpoint")
    writer = CheckpointWriter(DirectoryStore(folder), parts, start.optimizer, start.released)
    writer.save(start.state)
    writer.wait()
    accelerator.cut()
    return Trial(
        shapes=(_timing(shape, seconds),),
        validation_seconds=round(validated - began, 3),
        checkpoint_seconds=round(time.monotonic() - embedded, 3),
        losses=tuple(losses),
        metrics=judged.metrics(holdout),
    )


def _embeddings(config: Config, accelerator: Accelerator) -> list[EmbedSettings]:
    """Return the batch shapes for embedding in training, evaluate and infer; empty on devices without graphs."""
    if accelerator.graphs is None:
        return []
    inside = embed_settings(config, accelerator, config.train.precision)
    later = embed_settings(config, accelerator, config.infer.precision)
    return [inside] if inside.precision == later.precision else [inside, later]


def _timing(shape: BatchShape, seconds: list[float]) -> ShapeTiming:
    return ShapeTiming(
        sequences=shape.sequences,
        tokens=shape.tokens,
        first_step_seconds=round(seconds[0], 4),
        step_seconds=round(min(seconds), 4),
    )
