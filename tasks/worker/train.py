"""train: continues from the lineage's last checkpoint, over the batches of this run's spans, to the next checkpoint.

If killed, it resumes from its own newest checkpoint and ends with the same weights.
"""

import contextlib
import io
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from configs.schema.config import Config
from configs.schema.training import AUTO, learning_rate
from tasks.contracts.evaluation import COMPETITORS, Role
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import CheckpointRef, HeadSolved, HoldoutRule, LabelHeadSolved
from tasks.contracts.usage import Communication, RateUse, TokenUse
from tasks.contracts.workspace import ANSWERS
from tasks.preflight.encoder_size import gathered_bytes
from tasks.worker.checks.known_answers import prove_exchange
from tasks.worker.devices.accelerators import Accelerator, open_accelerator
from tasks.worker.devices.base import Precision
from tasks.worker.evaluation.measure import answer_columns
from tasks.worker.evaluation.refit import solve_heads
from tasks.worker.evaluation.rows_and_items import facts_of
from tasks.worker.process.job import Job
from tasks.worker.process.sigterm import StopRequest
from tasks.worker.process.watchdog import Watchdog
from tasks.worker.search.negatives import Mining, find_negatives, negative_arrays
from tasks.worker.training import compile_cache
from tasks.worker.training.batches import Batches, BatchShape, choose_shape, make_plan
from tasks.worker.training.checkpoint import CheckpointWriter, ModelParts, weights_on_host
from tasks.worker.training.checkpoint_interval import CheckpointInterval, Failures, Replicas, recorded_failures
from tasks.worker.training.compile_cache import graph_use
from tasks.worker.training.forgetting import average_weights, put_weights
from tasks.worker.training.holdout import Holdout, sample_holdout
from tasks.worker.training.known_pairs import KnownPositives, open_known
from tasks.worker.training.loop import LoopRecorder, TrainStep
from tasks.worker.training.pair_arrays import Pairs
from tasks.worker.training.plan import PlanFolder
from tasks.worker.training.start import (
    Start,
    broadcast_checkpoint,
    find_resume_point,
    load_initial_weights,
    load_model,
    load_weights,
    make_start,
    ref_at,
)
from tasks.worker.training.telemetry import StepClock, collect_device_use, measure_device_use
from tasks.worker.training.training_rows import (
    TrainingRows,
    lineage_keys,
    open_pairs,
    read_development_rows,
    read_training_rows,
    replayed_rows,
)


def run(job: Job) -> TrainOutcome:
    """Train on the spans of one run. The watchdog ends the process after `train.watchdog_seconds` without a step.

    Raises:
        CancelledError: SIGTERM arrived during training; the checkpoint of the last step is kept.
        CodeError: the workers' copies of the weights differ, or the loss is NaN.
        DataError: no row is left to train on.
        StoreError: the parent checkpoint is missing or corrupt; training never silently starts over.
        CompileError: a graph is new, not compiled by warmup, and `train.on_new_graph` is `fail`.
    """
    inputs = job.spec.inputs
    assert isinstance(inputs, TrainInputs)
    config = job.config
    with open_accelerator(config.accelerator, job.rank, config, config.train.precision) as accelerator:
        with job.clock.phase("restoring"):
            training, held, mined, parts, precision, start, pairs = _restore(job, inputs, accelerator)
            failures = _failures(job)
        state = start.state
        plan = make_plan(config, state.first_step, pairs, PlanFolder.of(job))
        shape = choose_shape(config, state.first_step, pairs, job.rank.world, inputs.mined is not None)
        negatives = negative_arrays(mined.found, len(pairs), parts, config) if mined else None
        last_step = state.step if state.complete else state.first_step + len(plan)
        batches = Batches(pairs, plan, shape, job.rank, range(state.step - state.first_step, len(plan)), negatives)
        steps = range(state.first_step, last_step)
        of_items = parts.items.model if parts.items is not None else None
        step = TrainStep(parts.model, start.optimizer, accelerator, config, precision, steps, start.average, of_items)
        writer = CheckpointWriter(job.store, parts, start.optimizer, start.released)
        replicas = Replicas(start.models, accelerator)
        interval = CheckpointInterval(
            config.train.checkpoint_every, failures, lambda: writer.stalled_seconds + replicas.seconds
        )
        with (
            job.scratch() as folder,
            contextlib.closing(
                LoopRecorder(job, accelerator, start.released, writer, interval, replicas, state, last_step, folder)
            ) as recorder,
            job.clock.phase("productive"),
        ):
            holdout = sample_holdout(held, parts, config)
            development = read_development_rows(job, inputs)
            chooses = None if development is None else sample_holdout(development, parts, config)
            recorder.evaluate_if_due(state.step, holdout, chooses)
            with measure_device_use(job):
                clock = _take_steps(job, batches, step, recorder, holdout, chooses)
            tokens = _tokens(accelerator, batches)
            answers_key = _keep_answers(job, inputs, held, holdout, recorder)
            if not state.complete and _choose_weights(job, inputs, start, recorder, training):
                solve_heads(job, start.released, accelerator, recorder.last_step, state.spared, beat=lambda: None)
            own = recorder.finish((*inputs.history, *inputs.rows), start.checkpoint if state.complete else None)
        checkpoint = _agree(job, own, accelerator)
        graphs = graph_use(accelerator)
        if graphs is not None:
            job.clock.count_as("compiling", graphs.compile_seconds)
    return TrainOutcome(
        checkpoint=checkpoint,
        model_version=f"{config.lineage}-{checkpoint.step:08d}-{checkpoint.sha256[:8]}",
        items=inputs.items,
        first_step=state.first_step,
        last_step=checkpoint.step,
        resumed_at_step=state.step if state.step > state.first_step else None,
        rows_trained=len(pairs),
        pairs_per_second=clock.pairs_per_second,
        tokens=tokens,
        losses=tuple(recorder.losses),
        curve=tuple(recorder.curve),
        rows_replayed=len(pairs) - pairs.own_rows,
        development=tuple(recorder.development),
        kept_step=recorder.kept_step,
        precision=precision,
        graphs=graphs,
        environment=accelerator.variables,
        head=_solved(start.released, recorder.last_step),
        label_heads=_labels_solved(start.released, recorder.last_step),
        device_use=collect_device_use(job),
        communication=_communication(job, clock, start, shape),
        mined=mined.counts if mined else None,
        checkpoints=recorder.checkpoints,
        learning_rate=_rate(config, range(state.first_step, recorder.last_step)),
        answers_key=answers_key,
    )


class _Restored(NamedTuple):
    """All that the steps need: rows and model as this attempt finds them."""

    training: TrainingRows
    held: pa.Table
    mined: Mining | None
    parts: ModelParts
    precision: Precision
    start: Start
    pairs: Pairs


def _restore(job: Job, inputs: TrainInputs, accelerator: Accelerator) -> _Restored:
    """Read the rows, and load the newest checkpoint of this run, else its parent. Raises as `run`."""
    config = job.config
    training, held = read_training_rows(job, inputs)
    known = open_known(job, lineage_keys(job, inputs), accelerator.barrier)
    mined = _mined(job, inputs, training, known, accelerator)
    compile_cache.expect(accelerator, job.store, inputs.compiled, config.train.on_new_graph)
    prove_exchange(accelerator)
    source = find_resume_point(job, inputs, accelerator)
    parts = load_model(job, source, training, inputs.items)
    precision = accelerator.choose_precision(config.train.precision)
    start = make_start(job, inputs, source, parts, accelerator, precision)
    pairs = open_pairs(job, training, replayed_rows(job, inputs), known, parts, accelerator.barrier)
    return _Restored(training, held, mined, parts, precision, start, pairs)


def _keep_answers(
    job: Job, inputs: TrainInputs, held: pa.Table, holdout: Holdout, recorder: LoopRecorder
) -> str | None:
    """Return the key of the answers to the evaluated rows after the last step; the first worker writes them.

    All rows have the run's span. An earlier attempt may have evaluated after the last step and died before its result;
    then the answers are its own.
    """
    if not held.num_rows:
        return None
    if recorder.answers is None:
        earlier = (ANSWERS.key(run=job.spec.run_key, attempt=number) for number in range(job.spec.attempt - 1, 0, -1))
        return next(filter(job.store.exists, earlier), None)
    if job.rank.is_main:
        rule = HoldoutRule.of(job.config.evaluate, (*inputs.history, *inputs.rows))
        table = facts_of(held, job.spec.span.name, job.config.heads, (), rule)
        table = table.append_column(COMPETITORS, pa.array(holdout.competitors))
        for name, column in answer_columns(Role.challenger, recorder.answers).items():
            table = table.append_column(name, column)
        out = io.BytesIO()
        pq.write_table(table, out)
        job.store.write(ANSWERS.of(job.spec), out.getvalue())
    return ANSWERS.of(job.spec)


def _communication(job: Job, clock: StepClock, start: Start, shape: BatchShape) -> Communication | None:
    heads, rows, model = job.config.heads, job.config.train.batch_rows, start.parts.model
    gathered = gathered_bytes(heads.contrastive, rows, shape.extra, model.shape.width)
    return clock.communication(job.store, job.spec.run_key, model, gathered)


def _rate(config: Config, steps: range) -> RateUse | None:
    if not steps:
        return None
    rate, settings = learning_rate(steps[-1], config.train), config.train
    return RateUse(rate=rate, peak=settings.learning_rate, warmed_up=steps[-1] >= settings.warmup_steps)


def _failures(job: Job) -> Failures | None:
    """Return the lineage's failure rate, on the first worker only, if the checkpoint interval needs it."""
    if job.config.train.checkpoint_every != AUTO or not job.rank.is_main:
        return None
    return recorded_failures(job.store, job.config.lineage, job.spec.run_key)


def _solved(released: ModelParts, step: int) -> HeadSolved | None:
    """Return the run's solution of the classification head; None if it did not solve one."""
    solved = released.model.solved
    return solved if solved is not None and solved.step == step else None


def _labels_solved(released: ModelParts, step: int) -> dict[str, LabelHeadSolved]:
    """Return the label heads that the run solved."""
    return {name: solved for name, solved in released.model.labels_solved.items() if solved.step == step}


def _mined(
    job: Job, inputs: TrainInputs, training: TrainingRows, known: KnownPositives, accelerator: Accelerator
) -> Mining | None:
    """Return the hard negatives; the mining model's graphs don't count as training's."""
    if inputs.mined is not None:
        compile_cache.reuse(accelerator, job.store, inputs.compiled)
    mined = find_negatives(job, inputs, training, known, accelerator)
    if accelerator.graphs is not None:
        accelerator.graphs.forget()
    return mined


def _take_steps(
    job: Job,
    batches: Batches,
    step: TrainStep,
    recorder: LoopRecorder,
    holdout: Holdout,
    development: Holdout | None,
) -> StepClock:
    """Take one step per remaining batch; evaluate and write checkpoints when due.

    Returns:
        The speed of the steps, without evaluations and checkpoints.
    """
    accelerator, first_step = step.accelerator, recorder.state.first_step
    clock = StepClock(accelerator)
    what = f"{batches.shape.sequences} x {batches.shape.tokens} tokens"
    stop = StopRequest()
    with stop.delay_sigterm(), Watchdog(job, job.config.train.watchdog_seconds) as watchdog:
        batches.end_before(recorder.last_step - first_step)
        for done, batch in enumerate(accelerator.feed(batches), start=recorder.state.step + 1):
            if done > recorder.last_step:
                continue  # prefetched before the run was stopped early
            accelerator.name_work(f"step {done}, {what}")
            step(batch, done - 1)
            recorder.parts.model.forget_solutions()
            watchdog.beat(f"step {done} ({what})")
            recorder.losses_if_due(done, step, stop.requested)
            recorder.stop_if_agreed(done)
            clock.count_step(batches.rows(done - 1 - first_step))
            if recorder.holdout_due(done) or recorder.checkpoint_due(done):
                clock.pause()
                if done == recorder.last_step:
                    solve_heads(job, recorder.parts, accelerator, done, recorder.state.spared, watchdog.beat)
                recorder.evaluate_if_due(done, holdout, development)
                batches.end_before(recorder.last_step - first_step)
                watchdog.beat()
                recorder.checkpoint_if_due(done)
                watchdog.beat()
                clock.resume()
    return clock


def _tokens(accelerator: Accelerator, batches: Batches) -> TokenUse | None:
    """Return the token counts of all workers' batches."""
    own = [batches.real_tokens, batches.cut_tokens, batches.computed_tokens]
    real, cut, computed = accelerator.sum(torch.tensor(own, dtype=torch.int64)).tolist()
    return TokenUse(real=real, cut=cut, computed=computed) if computed else None


def _choose_weights(
    job: Job, inputs: TrainInputs, start: Start, recorder: LoopRecorder, training: TrainingRows
) -> bool:
    """Load the run's final weights: of the best step, or averaged with the initial weights.

    Returns True if they differ from the last step's.
    """
    accelerator, parts, averaging = recorder.accelerator, start.parts, job.config.train.averaging
    accelerator.cut()
    others = recorder.kept_step is not None
    if recorder.kept_step is not None:
        recorder.writer.wait()
        accelerator.barrier()
        load_weights(job, ref_at(job, recorder.kept_step), start, accelerator)
        accelerator.barrier()  # the first worker deletes the loaded checkpoint after writing the last one
    if averaging is not None and averaging.merge_with_parent is not None:
        first = load_initial_weights(job, inputs, parts, training)
        if first is not None:
            put_weights(
                parts.model,
                average_weights(weights_on_host(parts.model), first, averaging.merge_with_parent),
                accelerator,
            )
            others = True
    return others


def _agree(job: Job, checkpoint: CheckpointRef | None, accelerator: Accelerator) -> CheckpointRef:
    """Return the checkpoint to all workers, after rank 0 has written it."""
    agreed = broadcast_checkpoint(job, checkpoint, accelerator)
    assert agreed is not None, "rank 0 has one"
    return agreed
