"""The training loop: one step, and the work around it, as losses, evaluations, checkpoints and TensorBoard events.

Warmup runs the same step, so training meets no other graphs. Losses and evaluations are due by the global step alone,
so a resume changes no due step.
"""

import dataclasses
import functools
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.tensorboard import SummaryWriter

from configs.schema.config import Config
from configs.schema.training import rate_in_run
from infra.store.records import place
from tasks.contracts.jobs import JobSpec, report
from tasks.contracts.references import CheckpointRef, CheckpointState, CurvePoint, RowsRef
from tasks.contracts.usage import CheckpointUse
from tasks.contracts.workspace import TENSORBOARD
from tasks.foundation.errors import CancelledError, CodeError
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.devices.base import Precision
from tasks.worker.model.embed import embed_settings
from tasks.worker.model.embedding_model import EmbeddingModel, Texts
from tasks.worker.process.job import Job
from tasks.worker.training.batches import Batch
from tasks.worker.training.checkpoint import CheckpointWriter, ModelParts, drop_partials
from tasks.worker.training.checkpoint_interval import CheckpointInterval, Replicas
from tasks.worker.training.forgetting import RunningAverage, best_step, is_out_of_patience
from tasks.worker.training.holdout import Holdout, HoldoutResults, judge
from tasks.worker.training.losses import batch_losses
from tasks.worker.training.optimizer import HostCountedAdamW, Update, set_rates

GRADIENT_NORM = "gradient_norm"
_STRIDE = 7_919 * 1_000_003  # between the seeds of chunks, far from the seeds of other steps


class GradientCache:
    """The sequences of a batch in equal chunks, for a gradient cache.

    Each chunk has its own seed, so that both forward passes have the same dropout.
    """

    def __init__(
        self,
        model: EmbeddingModel,
        texts: Texts,
        count: int,
        accelerator: Accelerator,
        precision: Precision,
        seed: int,
    ) -> None:
        """Encode all sequences without gradients; their number is a multiple of `count`."""
        self._texts, self._accelerator = texts, accelerator
        self._pool = accelerator.compile(model.pool)
        self._precision: Precision = precision
        self._seed = seed
        self._rows = torch.arange(len(texts.ids)).chunk(count)
        with torch.no_grad():
            encoded = [self._encode(number) for number in range(count)]
        self.pooled = torch.cat(encoded).requires_grad_()  # float32 (R * segments, D), as from `EmbeddingModel.pool`

    def backward(self) -> None:
        """Propagate the gradient of `pooled` to the encoder's weights, chunk by chunk."""
        assert self.pooled.grad is not None
        gradient = self.pooled.grad.unflatten(0, (len(self._texts.ids), -1))
        for number, rows in enumerate(self._rows):
            part = gradient.index_select(0, self._accelerator.upload(rows)).flatten(0, 1)
            self._encode(number, part)

    def _encode(self, number: int, gradient: torch.Tensor | None = None) -> torch.Tensor:
        """Return the pooled texts of a chunk; with a gradient, run the backward pass too."""
        self._accelerator.seed(self._seed + (number + 1) * _STRIDE)
        rows = self._accelerator.upload(self._rows[number])  # as data, so that all chunks share one graph
        names = ("ids", "segments", "positions")
        part = dataclasses.replace(
            self._texts, **{name: getattr(self._texts, name).index_select(0, rows) for name in names}
        )
        with self._accelerator.autocast(self._precision):
            pooled = self._pool(part)
        if gradient is not None:
            pooled.backward(gradient)
        self._accelerator.cut()
        return pooled


ALL_WORKERS = 1_008  # stands for the worker's number in seeds that all workers share; no worker has this number


@dataclass(eq=False)
class TrainStep:
    """Forward, backward, all-reduce, clip, update; on compiled devices two graphs, which are made only here.

    The first graph ends after the backward pass, so that the second, with the update, is the same for batches of any
    shape. With chunks, the graphs of the chunks come before and after the graph of the losses.
    """

    model: EmbeddingModel
    optimizer: torch.optim.AdamW
    accelerator: Accelerator
    config: Config
    precision: Precision
    steps: range = range(0)  # steps of the run; empty: unknown, so the rate does not decay at its end
    average: RunningAverage | None = None
    of_items: EmbeddingModel | None = None  # the model that embeds the items if queries alone are trained
    _names: tuple[str, ...] = ()
    _sums: torch.Tensor | None = None  # float32 (losses,) on the device
    _steps: int = 0

    def __post_init__(self) -> None:
        self._graph_of_losses = self.accelerator.compile(self._losses)
        self._graph_of_update = self.accelerator.compile(self._update)

    def __call__(self, batch: Batch, step: int) -> dict[str, torch.Tensor]:
        """Run global step `step` on this worker's part of a batch, which must be on the device.

        Returns:
            This worker's parts of the losses, detached float32 scalars on the device; a loss is their sum over workers.
        """
        seed = _seed(self.config.seed, step, self.accelerator.rank.index)
        self.accelerator.seed(seed)
        set_rates(self.optimizer, step, self.steps, self.config.train)
        self.optimizer.zero_grad(set_to_none=True)
        chunks, pooled = None, None
        if self.config.train.gradcache_chunks > 1:
            count = self.config.train.gradcache_chunks
            chunks = GradientCache(self.model, batch.texts, count, self.accelerator, self.precision, seed)
            pooled = chunks.pooled
        with self.accelerator.autocast(self.precision):
            losses = self._graph_of_losses(batch, pooled)
        if chunks is None:
            self.accelerator.begin_backward(self.optimizer)
        losses["loss"].backward()
        self.accelerator.cut()
        if chunks is not None:
            chunks.backward()
        parts = {name: loss.detach() for name, loss in losses.items()}
        # Stochastic rounding of bf16 weights needs the same random numbers on all workers; dropout does not.
        self.accelerator.seed(_seed(self.config.seed, step, ALL_WORKERS))
        updates = self.optimizer.count() if isinstance(self.optimizer, HostCountedAdamW) else None
        gained = 0.0 if self.average is None else self.average.share(step)
        if self._sums is None:  # uploaded, because creating zeros there would be a graph
            self._names, self._sums = (*parts, GRADIENT_NORM), self.accelerator.upload(torch.zeros(len(parts) + 1))
        self._sums = self._graph_of_update(updates, gained, parts, self._sums)
        self._steps += 1
        self.accelerator.cut()
        return parts

    def _losses(self, batch: Batch, pooled: torch.Tensor | None) -> dict[str, torch.Tensor]:
        """Return this worker's losses: the first graph, with its backward pass."""
        return batch_losses(self.model, batch, self.config.heads, self.accelerator, pooled, self.of_items)

    @torch.no_grad()
    def _update(
        self,
        updates: list[Update] | None,
        gained: float | torch.Tensor,
        parts: dict[str, torch.Tensor],
        sums: torch.Tensor,
    ) -> torch.Tensor:
        """Update the weights, and return the sums with this step's losses and gradient norm: the second graph."""
        self.accelerator.reduce_gradients(self.optimizer)
        norm = self.accelerator.clip_gradients(self.model, self.config.train.max_gradient_norm)
        if updates is None:
            self.optimizer.step()
        else:
            assert isinstance(self.optimizer, HostCountedAdamW)
            self.optimizer.apply(updates)
        if self.average is not None:
            self.average.update(self.model, gained)
        shared = norm.detach() / self.accelerator.rank.world  # all workers have the same norm
        return sums + torch.stack([part.float() for part in [*parts.values(), shared]])

    def take_losses(self) -> tuple[tuple[str, ...], torch.Tensor, int]:
        """Return names, their sums float32 (names,) on the device, and the number of steps; then reset.

        The names are those of the losses, and GRADIENT_NORM: the norm before it is clipped, of which each worker has a
        part too.
        """
        assert self._sums is not None, "no step since the last call"
        taken = (self._names, self._sums, self._steps)
        self._sums, self._steps = None, 0
        return taken


def _seed(seed: int, step: int, of: int) -> int:
    """Return the seed of a step for worker number `of`, or for ALL_WORKERS."""
    return seed * 1_000_003 + step * 1_009 + of


@dataclass(eq=False)
class LoopRecorder:
    """Records losses, holdout curve and checkpoints of one run, at the steps when they are due.

    `parts` is the model that is evaluated; `last_step` becomes smaller if the development rows stop the run early.
    """

    job: Job
    accelerator: Accelerator
    parts: ModelParts
    writer: CheckpointWriter
    interval: CheckpointInterval
    replicas: Replicas
    state: CheckpointState
    last_step: int
    folder: Path  # an empty local folder for TensorBoard's event files
    _stopping: bool = False

    def __post_init__(self) -> None:
        self.losses = list(self.state.losses)
        self.curve = list(self.state.curve)
        self.development = list(self.state.development)
        self.answers: HoldoutResults | None = None  # to the holdout, of the newest evaluation in this attempt
        self.checkpoints: CheckpointUse | None = None  # on the first worker, after the last step
        self.events = SummaryWriter(str(self.folder)) if self.accelerator.rank.is_main else None

    @property
    def spec(self) -> JobSpec:
        return self.job.spec

    def losses_due(self, step: int) -> bool:
        """Return True if losses are due: every `train.log_every_steps`, at the last step, and at planned checkpoints.

        A step evaluated on development rows may become a checkpoint or the last step. Checkpoints by the clock can't be
        planned, so they wait for one of these steps.
        """
        config = self.spec.config.train
        judged = config.keep_best is not None and self.holdout_due(step)
        return (
            not step % config.log_every_steps or self.interval.is_due_by_steps(step) or step == self.last_step or judged
        )

    def losses_if_due(self, step: int, train_step: TrainStep, stop: bool) -> None:
        """Read the mean losses since the last reading, if one is due.

        Args:
            stop: this worker was asked to stop. The losses carry this to the others, so that all stop at the same step.

        Raises:
            CodeError: the loss is not finite; continuing would write a useless checkpoint.
        """
        if not self.losses_due(step):
            return
        names, sums, steps = train_step.take_losses()
        rate = rate_in_run(step - 1, train_step.steps, self.spec.config.train)
        self.accelerator.when_known(lambda values: self._record_losses(step, names, values / steps, stop, rate), sums)

    def _record_losses(self, step: int, names: tuple[str, ...], means: torch.Tensor, stop: bool, rate: float) -> None:
        """Record losses, gradient norm and rate; `means` float32 (names,) are this worker's parts, on the host."""
        due = self.accelerator.rank.is_main and self.interval.has_passed
        asked = means.new_tensor([float(stop), float(due)])
        *values, stops, wishes = self.accelerator.sum(torch.cat([means, asked])).tolist()
        self._stopping = self._stopping or stops > 0
        self.interval.agree(wishes > 0)
        found = dict(zip(names, values, strict=True))
        norm = found.pop(GRADIENT_NORM)
        point = CurvePoint(step=step, metrics=found)
        if not all(math.isfinite(value) for value in found.values()):
            raise CodeError(
                f"the loss is {values[0]} at step {step}; lower train.learning_rate or raise train.warmup_steps. "
                f"The last checkpoint before it is intact"
            )
        self.losses.append(point)
        self._event("train", point)
        self._event("optimizer", CurvePoint(step=step, metrics={"learning_rate": rate, GRADIENT_NORM: norm}))
        if self.accelerator.rank.is_main:
            done, total = step - self.state.first_step, self.last_step - self.state.first_step
            report("train", done, total, f"loss {point.metrics['loss']:.4f}")

    def holdout_due(self, step: int) -> bool:
        """Return True before the first step, every `train.evaluate_every_steps`, and after the last step."""
        return step in (self.state.first_step, self.last_step) or not step % self.spec.config.train.evaluate_every_steps

    def holdout_if_due(self, step: int, holdout: Holdout) -> None:
        """Evaluate the model after `step` if due, unless an earlier attempt did."""
        done = self.curve and self.curve[-1].step == step
        if not self.holdout_due(step) or not len(holdout.query) or done:
            return
        self.accelerator.name_work(f"evaluation after step {step}")
        self.answers = self._judge(holdout)
        self.curve.append(CurvePoint(step=step, metrics=self.answers.metrics(holdout)))
        self._event("holdout", self.curve[-1])

    def evaluate_if_due(self, step: int, holdout: Holdout, development: Holdout | None) -> None:
        """Evaluate the model after `step` on the holdout, and on the development rows if any exist."""
        self.holdout_if_due(step, holdout)
        if development is not None:
            self._choose_if_due(step, development)

    def _choose_if_due(self, step: int, development: Holdout) -> None:
        """Evaluate the model after `step` on the development rows, when the holdout is due, but not before training.

        Stop the run at this step if patience is exhausted. All workers get the same numbers, and so stop together.
        """
        settings = self.spec.config.train.keep_best
        done = self.development and self.development[-1].step == step
        if settings is None or done or not self.holdout_due(step) or step == self.state.first_step:
            return
        self.accelerator.name_work(f"evaluation after step {step}")
        self.development.append(CurvePoint(step=step, metrics=self._judge(development).metrics(development)))
        self._event("development", self.development[-1])
        if is_out_of_patience(self.development, settings):
            self.last_step = step

    def _judge(self, rows: Holdout) -> HoldoutResults:
        config = self.spec.config
        settings = embed_settings(config, self.accelerator, config.train.precision)
        return judge(self.parts, rows, self.accelerator, settings)

    @property
    def best_step(self) -> int | None:
        """The best step so far by the development rows; None without such rows."""
        settings = self.spec.config.train.keep_best
        return None if settings is None else best_step(self.development, settings)

    def checkpoint_due(self, step: int) -> bool:
        """Return True if a partial checkpoint is due, by `train.checkpoint_every` or because `step` is the best so far.

        None is due after the last step.
        """
        by_clock = self.interval.wanted and self.losses_due(step)
        return (self.interval.is_due_by_steps(step) or by_clock or step == self.best_step) and step != self.last_step

    def checkpoint_if_due(self, step: int) -> None:
        """Start to write a partial checkpoint if one is due. Raises CodeError: the workers' weights differ."""
        if not self.checkpoint_due(step):
            return
        self.accelerator.cut()  # it must contain the losses that are still on the device
        self.replicas.compare(step)
        if self.accelerator.rank.is_main:
            self._save_partial(step)
        self.interval.restart()

    def stop_if_agreed(self, step: int) -> None:
        """Write a checkpoint of `step` and raise, if a worker was asked to stop and the losses of `step` are read.

        An evaluation that is due is left to the next attempt, because the sender of SIGTERM does not wait long. After
        the last step, the run just finishes.

        Raises:
            CancelledError: the checkpoint is written.
            CodeError: the workers' weights differ.
            StoreError, OSError: the checkpoint could not be written.
        """
        if not self._stopping or not self.losses_due(step) or step == self.last_step:
            return
        self.accelerator.cut()  # it must contain the losses that are still on the device
        self.replicas.compare(step)
        if self.accelerator.rank.is_main:
            self._save_partial(step)
            self.writer.wait()
        self.accelerator.barrier()  # a worker that ends early would end the others
        raise CancelledError(
            f"stopped by SIGTERM after step {step}; its checkpoint is kept, and the next attempt continues from there"
        )

    def finish(self, consumed: tuple[RowsRef, ...], checkpoint: CheckpointRef | None) -> CheckpointRef | None:
        """On rank 0, write the complete checkpoint, drop the partial ones, and return it; None on other ranks.

        `checkpoint` is the complete one, if an earlier attempt wrote it but died before its result.

        Raises:
            CodeError: the workers' weights differ.
        """
        self.accelerator.cut()
        self.replicas.compare(self.last_step)
        if not self.accelerator.rank.is_main:
            return None
        self.writer.wait()
        self.checkpoints = self.interval.use()
        if checkpoint is None:
            self._save(self._state(self.last_step, complete=True, consumed=consumed))
            checkpoint = self.writer.wait()
        drop_partials(self.job.store, self.spec.config.lineage, self.spec.run_key, after=self.state.first_step, keep=0)
        self.close()
        return checkpoint

    def close(self) -> None:
        """Upload the event files to the workspace."""
        if self.events is not None:
            self.events.close()
            for path in sorted(self.folder.iterdir()):
                # TensorBoard names a run after its folders: the last one says the span.
                place(self.job.store, path, f"{TENSORBOARD.of(self.spec)}/{self.spec.span.name}/{path.name}")
            self.events = None

    def _save_partial(self, step: int) -> None:
        best = self.best_step
        state = self._state(step, complete=False, consumed=self.state.consumed)
        self._save(state, best_step=None if best == step else best)

    def _save(self, state: CheckpointState, best_step: int | None = None) -> None:
        self.writer.save(state, best_step, written=functools.partial(self.job.keep, self.job.clock.read()))

    @property
    def kept_step(self) -> int | None:
        """The step whose weights the run keeps, if not the last step."""
        return None if self.best_step == self.last_step else self.best_step

    def _state(self, step: int, complete: bool, consumed: tuple[RowsRef, ...]) -> CheckpointState:
        changes = {"step": step, "complete": complete, "consumed": consumed, "head": self.parts.model.solved}
        changes["label_heads"] = dict(self.parts.model.labels_solved)
        curves = {name: tuple(getattr(self, name)) for name in ("losses", "curve", "development")}
        if complete:
            changes["kept_step"] = self.kept_step
        return self.state.model_copy(update=changes | curves)

    def _event(self, group: str, point: CurvePoint) -> None:
        if self.events is not None:
            for name, value in point.metrics.items():
                self.events.add_scalar(f"{group}/{name}", value, point.step)
