"""The stages of a run, in order, and one table of what the rest of the project must know of each.

A new stage is a file `tasks/<stage>.py`, a file `tasks/worker/<stage>.py` and an entry here;
`tests/planes/test_recipes.py` names whatever else is missing.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from configs.schema.compute import Compute
from configs.schema.config import Config


class Stage(enum.StrEnum):
    """The stages, in order."""

    validate = "validate"
    health = "health"
    warmup = "warmup"
    train = "train"
    evaluate = "evaluate"
    infer = "infer"
    release = "release"


class Chore(enum.StrEnum):
    """Work for a worker that is not a stage: nothing in the pipeline waits for it."""

    import_checkpoint = "import-checkpoint"
    publish = "publish"


Work = Stage | Chore


class Queue(enum.StrEnum):
    """The job queue, and so the kind of machine."""

    cpu = "cpu"
    accelerator = "accelerator"


class Layout(enum.StrEnum):
    """How the workers of a stage are spread over machines."""

    single = "single"  # one job on one machine
    array = "array"  # workers never meet: each machine is a job of its own, and each worker has its own outcome
    nodes = "nodes"  # workers talk to each other: the machines are the nodes of one job


class Rows(enum.StrEnum):
    """The rows that a stage's time grows with."""

    window = "window"  # of all spans that the run trains on
    span = "span"  # of the run's own span
    none = "none"


class BackfillPhase(enum.StrEnum):
    """When a backfill does a stage: trainings run one after another, judging side by side, releases at the end."""

    training = "training"
    judging = "judging"
    release = "release"


@dataclass(frozen=True)
class Traits:
    """Facts about a stage that the rest of the project must know."""

    compute: Callable[[Config], Compute | None]  # None: where `compute` at the top of the configuration says
    queue: Queue = Queue.cpu
    layout: Layout = Layout.single
    workers: Callable[[Config], int] = lambda config: 1
    time_grows_with: Rows = Rows.none
    backfill: BackfillPhase | None = None
    shown_by_span: bool = False  # its end is a column of the span table
    shows_speed: bool = False  # in the history of the pipeline


TRAITS: dict[Work, Traits] = {
    Stage.validate: Traits(
        compute=lambda config: config.validate_.compute,
        time_grows_with=Rows.window,
        backfill=BackfillPhase.training,
        shown_by_span=True,
    ),
    Stage.health: Traits(
        queue=Queue.accelerator,
        layout=Layout.nodes,
        workers=lambda config: config.train.workers,
        compute=lambda config: config.health.compute or config.train.compute,  # the machines that will train
        backfill=BackfillPhase.training,
    ),
    Stage.warmup: Traits(
        queue=Queue.accelerator,
        layout=Layout.nodes,
        workers=lambda config: config.train.workers,
        compute=lambda config: config.warmup.compute or config.train.compute,
        backfill=BackfillPhase.training,
        shows_speed=True,
    ),
    Stage.train: Traits(
        queue=Queue.accelerator,
        layout=Layout.nodes,
        workers=lambda config: config.train.workers,
        compute=lambda config: config.train.compute,
        time_grows_with=Rows.window,
        backfill=BackfillPhase.training,
        shown_by_span=True,
        shows_speed=True,
    ),
    Stage.evaluate: Traits(
        queue=Queue.accelerator,
        layout=Layout.nodes,
        workers=lambda config: config.train.workers,
        compute=lambda config: config.evaluate.compute or config.train.compute,  # the machines that trained
        backfill=BackfillPhase.judging,
        shown_by_span=True,
    ),
    Stage.infer: Traits(
        queue=Queue.accelerator,
        layout=Layout.array,
        workers=lambda config: config.infer.workers,
        compute=lambda config: config.infer.compute,
        time_grows_with=Rows.span,
        backfill=BackfillPhase.judging,
        shown_by_span=True,
        shows_speed=True,
    ),
    Stage.release: Traits(
        compute=lambda config: config.release.compute,
        backfill=BackfillPhase.release,
        shown_by_span=True,
    ),
    Chore.import_checkpoint: Traits(
        queue=Queue.accelerator,
        compute=lambda config: config.train.compute,
    ),
    Chore.publish: Traits(
        compute=lambda config: config.publish.compute,
    ),
}


def compute_of(config: Config, work: Work) -> Compute:
    """Return where a stage runs: its own `compute`, else the one at the top of the configuration."""
    return TRAITS[work].compute(config) or config.compute


def workers_of(config: Config, work: Work) -> int:
    """Return the number of worker processes of a stage."""
    return TRAITS[work].workers(config)


def stages_in(phase: BackfillPhase) -> tuple[Stage, ...]:
    """Return the stages that a backfill does in one phase, in order."""
    return tuple(stage for stage in Stage if TRAITS[stage].backfill is phase)
