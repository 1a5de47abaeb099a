"""Plan and train the runs of a parity comparison: the same spans from the same checkpoint, on two accelerators.

They change neither the compared lineage nor the list of runs. The ledger records their attempts.
"""

from typing import NamedTuple

from configs.schema.compute import ACCELERATORS
from configs.schema.config import Config
from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.outcomes import TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Stage, compute_of
from tasks.foundation.errors import ConfigError
from tasks.planning.next_run import plan_work
from tasks.running.stage import run_stage, stage_task
from tasks.runs.plan import run_key, with_settings


@stage_task
def train(plan: RunPlan, validated: ValidateOutcome, warm: WarmupOutcome) -> TrainOutcome:
    """Train one side from the plan's parent; return its losses and holdout curve.

    No run continues from the checkpoint, which is three times the size of the model. It is deleted as soon as the
    result is recorded, so only one side at a time needs disk. A side with a result is not trained again.
    """
    inputs = TrainInputs(
        rows=validated.rows,
        history=plan.history,
        parent=plan.parent,
        compiled=warm.compiled,
        golden=validated.golden,
    )
    outcome = run_stage(plan, inputs, TrainOutcome, outputs_stay=False)
    drop_checkpoints(open_store(plan.workspace), plan)
    return outcome


class ParityRuns(NamedTuple):
    """`common` validates the rows for both sides; `left` and `right` differ only in accelerator and lineage."""

    lineage: str
    common: RunPlan
    left: RunPlan
    right: RunPlan

    @property
    def lock(self) -> str:
        """Key of the lock that comparisons of the same work hold, because they share rows and maybe a side."""
        return f"lineages/{self.common.config.lineage}.run"


def plan_parity_runs(store: Store, config: Config, span: str, left: str, right: str) -> ParityRuns:
    """Plan both sides' runs over `span`, which the lineage may have trained or not. Writes nothing.

    Both have the starting point of the lineage's own run over the span. `train.precision: auto` can mean a different
    precision on each side, so it becomes fp32. Each side's lineage has a hash of its work in the name, for example
    main-parity-4660d23f-xla, so no other work can use it. An accelerator compared with itself is trained twice.

    Raises:
        ConfigError: an accelerator is unknown, the batch can't be split among the GPUs of `batch.cuda`, or the span
            can't be trained next; names the spans that can.
        StoreError: the lineage's head or an earlier plan is not readable.
    """
    for side in (left, right):
        if side not in ACCELERATORS:
            raise ConfigError(f"unknown accelerator {side!r}; known are {', '.join(ACCELERATORS)}")
    work = plan_work(store, _same_precision(config), span)
    neutral = work.config.model_copy(update={"accelerator": ACCELERATORS[0]})
    name = f"{config.lineage}-parity-{run_key(neutral, work.window, work.parent)[:8]}"
    again = "-again" if left == right else ""
    return ParityRuns(
        lineage=config.lineage,
        common=with_settings(work, lineage=name, accelerator=ACCELERATORS[0]),
        left=with_settings(work, lineage=f"{name}-{left}", **_machines(config, left)),
        right=with_settings(work, lineage=f"{name}-{right}{again}", **_machines(config, right)),
    )


def drop_checkpoints(store: Store, side: RunPlan) -> None:
    """Delete the checkpoints of one side; its result keeps the measurements."""
    store.delete(f"lineages/{side.config.lineage}")


def _machines(config: Config, accelerator: str) -> dict[str, object]:
    """Return the settings of a side: its accelerator, and one machine of `batch.cuda` if it runs there."""
    batch, other = config.batch, config.batch.cuda
    if accelerator != "cuda" or other is None or compute_of(config, Stage.train) != "batch":
        return {"accelerator": accelerator}
    machines = {
        "accelerator_queue": other.queue,
        "accelerator_definition": other.definition,
        "processes_per_node": other.processes_per_node,
        "accelerator_instance": other.instance,
    }
    train = _same_precision(config).train
    if train.batch_rows % other.processes_per_node or (train.sequences or 0) % other.processes_per_node:
        raise ConfigError(
            f"train.batch_rows {train.batch_rows} and train.sequences {train.sequences} must be multiples of "
            f"batch.cuda.processes_per_node {other.processes_per_node}, the workers of the side on cuda"
        )
    return {
        "accelerator": accelerator,
        "batch": batch.model_copy(update=machines),
        "health": config.health.model_copy(update={"machine": None}),
        "train": train.model_copy(update={"workers": other.processes_per_node}),
    }


def _same_precision(config: Config) -> Config:
    if config.train.precision != "auto":
        return config
    return config.model_copy(update={"train": config.train.model_copy(update={"precision": "fp32"})})
