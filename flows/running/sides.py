"""The trainings of a comparison, one after the other: rows once, health and warmup once a side, then every seed."""

from collections.abc import Iterator
from typing import ParamSpec, TypeVar

from tasks.health import health
from tasks.running.stage import StageTask
from tasks.upkeep.sides import SideRun, SideRuns, Trained
from tasks.upkeep.train_side import train
from tasks.validate import validate
from tasks.warmup import warmup

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
