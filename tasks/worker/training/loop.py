"""The work around the training steps: read losses, evaluate the holdout, write checkpoints and TensorBoard events.

Losses and evaluations are due by the global step alone, so a resume changes no due step.
"""

import functools
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.utils.tensorboard import SummaryWriter

from configs.schema.learning_rate import rate_in_run
from infra.store.placing import place
from tasks.contracts.checkpoints import CheckpointState, CurvePoint
from tasks.contracts.jobs import JobSpec
from tasks.contracts.references import CheckpointRef, RowsRef
from tasks.contracts.runner import report
from tasks.contracts.usage import CheckpointUse
from tasks.contracts.workspace import TENSORBOARD
from tasks.foundation.errors import CancelledError, CodeError
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model.embed import embed_settings
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import CheckpointWriter, ModelParts, drop_partials
from tasks.worker.training.checkpoint_interval import CheckpointInterval, Replicas
from tasks.worker.training.forgetting import best_step, is_out_of_patience
from tasks.worker.training.holdout import Holdout, HoldoutResults, judge
from tasks.worker.training.step import GRADIENT_NORM, TrainStep


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
