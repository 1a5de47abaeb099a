"""warmup: compiles training's graphs and runs a short trial of training. Only compiled graphs are kept.

The trial is a few training steps, then each computation of evaluation and inference once, with the same step,
evaluation and checkpoint as training, on the run's own rows. So too large shapes, exhausted memory and graphs that
don't compile fail here, not an hour into training. The metrics of a trial are not meaningful.
"""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs, WarmupInputs, report
from tasks.contracts.outcomes import WarmupOutcome
from tasks.contracts.references import CompileRef
from tasks.contracts.usage import ShapeTiming
from tasks.foundation.errors import CompileError
from tasks.worker.checks.known_answers import prove_exchange
from tasks.worker.devices.accelerators import Accelerator, make_accelerator, open_device
from tasks.worker.devices.base import Precision
from tasks.worker.model.embed import EmbedSettings, compile_embedding, embed_settings
from tasks.worker.process.job import Job
from tasks.worker.training import compile_cache
from tasks.worker.training.batches import SAMPLED_ROWS, BatchShape, choose_shape, make_batch, make_plan
from tasks.worker.training.checkpoint import CheckpointWriter, ModelParts
from tasks.worker.training.compile_ahead import CompileSession, provide_graphs
from tasks.worker.training.compile_cache import graph_use
from tasks.worker.training.holdout import judge, sample_holdout
from tasks.worker.training.loop import TrainStep
from tasks.worker.training.pair_arrays import Pairs
from tasks.worker.training.start import ResumePoint, Start, load_model, make_start
from tasks.worker.training.training_rows import first_rows, make_pairs, read_training_rows


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
    of_items = parts.items.model if parts.items is not None else None
    step = TrainStep(
        parts.model, start.optimizer, accelerator, config, precision, average=start.average, of_items=of_items
    )
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


GIB = 2**30


def run(job: Job) -> WarmupOutcome | None:
    """Try every shape; the seconds of each first step include one-time costs (allocation, kernels, graphs).

    Returns None inside a tool that only collects graphs: nothing was computed.

    Raises:
        OutOfMemoryError: a shape does not fit.
        CompileError: a graph did not compile, or the workers do not run the same graphs.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, WarmupInputs)
    config = job.config
    trial_inputs = TrainInputs(
        rows=inputs.rows, history=(), parent=inputs.parent, mined=inputs.mined, items=inputs.items
    )
    accelerator = make_accelerator(config.accelerator, job.rank, config, config.train.precision)
    with job.clock.phase("restoring"):
        training, held = read_training_rows(job, trial_inputs)
        source = ResumePoint(inputs.parent, own=False)
        parts = load_model(job, source, training, inputs.items)
        pairs = make_pairs(first_rows(training, SAMPLED_ROWS), parts, config)
        first_step = inputs.parent.step if inputs.parent else 0
        shape = choose_shape(config, first_step, pairs, job.rank.world, inputs.mined is not None)
    with (
        job.clock.phase("compiling"),
        _compile_session(job, accelerator, parts, shape) as session,
        open_device(accelerator),
    ):
        trial = _try(job, trial_inputs, accelerator, source, parts, pairs, shape, held)
        if accelerator.collects_only:
            return None
        compiled = _publish(job, accelerator, session) if session else None
        graphs = graph_use(accelerator)
    return WarmupOutcome(
        device=accelerator.name,
        shapes=trial.shapes,
        validation_seconds=trial.validation_seconds,
        checkpoint_seconds=trial.checkpoint_seconds,
        peak_memory_gib=round(accelerator.peak_memory_bytes() / GIB, 3),
        compiled=compiled,
        graphs=graphs,
        trial_losses=trial.losses,
        trial_metrics=trial.metrics,
        environment=accelerator.variables,
    )


@contextlib.contextmanager
def _compile_session(
    job: Job, accelerator: Accelerator, parts: ModelParts, shape: BatchShape
) -> Iterator[CompileSession | None]:
    """Yield a session; None on devices that compile nothing, and inside the tool that collects graphs."""
    if accelerator.graphs is None or accelerator.collects_only:
        yield None
    else:
        with provide_graphs(job, accelerator, parts, shape) as session:
            assert accelerator.graphs is not None
            accelerator.graphs.expect(session.before.graphs, session.before.seconds, on_new="note")
            yield session


def _try(
    job: Job,
    inputs: TrainInputs,
    accelerator: Accelerator,
    source: ResumePoint,
    parts: ModelParts,
    pairs: Pairs,
    shape: BatchShape,
    held: pa.Table,
) -> Trial:
    prove_exchange(accelerator)
    precision = accelerator.choose_precision(job.config.train.precision)
    start = make_start(job, inputs, source, parts, accelerator, precision)
    with job.scratch() as folder:
        return run_trial(job, start, accelerator, precision, pairs, shape, held, folder)


def _publish(job: Job, accelerator: Accelerator, session: CompileSession) -> CompileRef:
    """Publish on rank 0; the others check that their graphs are the same: else workers would wait forever."""
    assert accelerator.graphs is not None
    if job.rank.is_main:
        compiled = session.publish()
        accelerator.barrier()
        return compiled
    accelerator.barrier()
    graphs = compile_cache.list_cached(job.shared, session.key)
    if other := [graph for graph in accelerator.graphs.met if graph.name not in graphs]:
        raise CompileError(
            f"worker {job.rank.index} compiled graph {other[0].name} at {other[0].where}, which worker 0 did not: the "
            "workers would wait for each other forever"
        )
    return compile_cache.ref_to(session.key, graphs)
