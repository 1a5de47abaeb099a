"""The trainings of a comparison, one after the other: rows once, health and warmup once a side, then every seed.

The weights of a training go at once; its curve and metrics stay.
"""

from collections.abc import Iterator
from typing import ParamSpec, TypeVar

from infra.store.base import Store
from infra.store.factory import open_store
from tasks.contracts.kinds import lineage_folder
from tasks.contracts.outcomes import TrainOutcome, ValidateOutcome, WarmupOutcome
from tasks.contracts.runs import RunPlan
from tasks.health import health
from tasks.laboratory.sides import SideRun, SideRuns, Trained
from tasks.running.stage import StageTask, run_stage, stage_task
from tasks.train import inputs_of
from tasks.validate import validate
from tasks.warmup import warmup


@stage_task
def train(plan: RunPlan, validated: ValidateOutcome, warm: WarmupOutcome) -> TrainOutcome:
    """Train one side from the plan's parent; return its losses and holdout curve.

    No run continues from the checkpoint, which is three times the size of the model. It is deleted as soon as the
    result is recorded, so only one side at a time needs disk. A side with a result is not trained again.
    """
    outcome = run_stage(plan, inputs_of(plan, validated, warm), TrainOutcome, outputs_stay=False)
    drop_checkpoints(open_store(plan.workspace), plan)
    return outcome


def drop_checkpoints(store: Store, side: RunPlan) -> None:
    """Delete the checkpoints of one side; its result keeps the measurements."""
    store.delete(lineage_folder(side.config.lineage))


P = ParamSpec("P")
R = TypeVar("R")


def train_sides(runs: SideRuns) -> Iterator[Trained]:
    """Yield each training once it is done. A finished one is not repeated; its weights are deleted at once.

    Raises:
        StageError: a stage failed, with its failure class.
    """
    sides = list({run.side: run for run in reversed(runs.runs)}.values())[::-1]
    validated = validate(runs.common, catalogue=False)
    # A problem of one side is found before the other has trained for hours.
    healthy = {run.side: _on(run, health, after=validated) for run in sides}
    warm = {run.side: _on(run, warmup, validated, after=healthy[run.side]) for run in sides}
    first = runs.runs[0].seed
    for run in runs.runs:
        named = run if run.seed == first else run._replace(side=f"{run.side}, seed {run.seed}")
        yield Trained(run, warm[run.side].device, _on(named, train, validated, warm[run.side]))


def _on(run: SideRun, task: StageTask[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Run a stage of one side under a name with the side."""
    return task.called(f"{task.task.name} {run.plan.span.name} ({run.side})")(run.plan, *args, **kwargs)
