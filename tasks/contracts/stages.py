"""The stages of a run, in order, with their traits.

A new stage begins here; `python -m tests.planes.recipes` then names the missing files.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Self

from configs.schema.compute import Compute
from configs.schema.config import Config
from configs.schema.operations import LOCAL_WORKER


class Queue(enum.StrEnum):
    """The job queue, which decides the kind of machine."""

    cpu = "cpu"
    accelerator = "accelerator"


class Layout(enum.StrEnum):
    """The distribution of a stage's workers over machines."""

    single = "single"  # one job on one machine
    array = "array"  # independent workers: each machine is a job of its own, and each worker has its own outcome
    nodes = "nodes"  # communicating workers: the machines are the nodes of one job


class Libraries(enum.StrEnum):
    """The libraries of a warm parent, from which this machine's processors fork the workers of a stage."""

    rows = "rows"  # great-expectations, pandas
    model = "model"  # torch, transformers


class BackfillPhase(enum.StrEnum):
    """The phase of a backfill that does a stage: trainings in sequence, judging in parallel, releases at the end."""

    training = "training"
    judging = "judging"
    release = "release"


@dataclass(frozen=True)
class Traits:
    """The properties of a stage or a chore that other code depends on."""

    name: str
    compute: Callable[[Config], Compute | None] = lambda config: None  # None: `compute` at the top of the configuration
    queue: Queue = Queue.cpu
    layout: Layout = Layout.single
    workers: Callable[[Config], int] = lambda config: 1
    time_grows_with_rows: bool = False  # rows of all spans that the run trains on
    backfill: BackfillPhase | None = None
    shown_by_span: bool = False  # its end is a column of the span table
    shows_speed: bool = False  # in the history of the pipeline
    libraries: Libraries | None = None  # of the warm parent; None: its workers are always processes of their own
    laboratory: bool = False  # no run needs it: its modules are in the folders of that name


class _WithTraits(enum.StrEnum):
    """Names with traits: `Stage.train` is the text `train`, and has `Stage.train.traits`."""

    traits: Traits

    def __new__(cls, traits: Traits) -> Self:
        member = str.__new__(cls, traits.name)
        member._value_, member.traits = traits.name, traits
        return member

    @property
    def module(self) -> str:
        """Name of its module in `tasks` and in `tasks.worker`, as in `laboratory.import_checkpoint`."""
        return f"laboratory.{self.name}" if self.traits.laboratory else self.name


class Stage(_WithTraits):
    """The stages, in order."""

    validate = Traits(
        "validate",
        libraries=Libraries.rows,
        layout=Layout.array,
        workers=lambda config: config.validate_.workers,
        compute=lambda config: config.validate_.compute,
        time_grows_with_rows=True,
        backfill=BackfillPhase.training,
        shown_by_span=True,
    )
    health = Traits(
        "health",
        libraries=Libraries.model,
        queue=Queue.accelerator,
        layout=Layout.nodes,
        workers=lambda config: config.train.workers,
        compute=lambda config: config.health.compute or config.train.compute,  # the machines that will train
        backfill=BackfillPhase.training,
    )
    warmup = Traits(
        "warmup",
        libraries=Libraries.model,
        queue=Queue.accelerator,
        layout=Layout.nodes,
        workers=lambda config: config.train.workers,
        compute=lambda config: config.warmup.compute or config.train.compute,
        backfill=BackfillPhase.training,
        shows_speed=True,
    )
    train = Traits(
        "train",
        libraries=Libraries.model,
        queue=Queue.accelerator,
        layout=Layout.nodes,
        workers=lambda config: config.train.workers,
        compute=lambda config: config.train.compute,
        time_grows_with_rows=True,
        backfill=BackfillPhase.training,
        shown_by_span=True,
        shows_speed=True,
    )
    evaluate = Traits(
        "evaluate",
        libraries=Libraries.model,
        queue=Queue.accelerator,
        layout=Layout.nodes,
        workers=lambda config: config.train.workers,
        compute=lambda config: config.evaluate.compute or config.train.compute,  # the machines that trained
        backfill=BackfillPhase.judging,
        shown_by_span=True,
    )
    infer = Traits(
        "infer",
        libraries=Libraries.model,
        queue=Queue.accelerator,
        layout=Layout.array,
        workers=lambda config: config.infer.workers,
        compute=lambda config: config.infer.compute,
        backfill=BackfillPhase.judging,
        shown_by_span=True,
        shows_speed=True,
    )
    release = Traits(
        "release",
        libraries=Libraries.model,
        layout=Layout.array,
        workers=lambda config: config.release.workers,
        compute=lambda config: config.release.compute,
        backfill=BackfillPhase.release,
        shown_by_span=True,
    )


REFRESHING = (Stage.validate, Stage.infer, Stage.release)  # the stages of a refresh


class Chore(_WithTraits):
    """Work for a worker that is not a stage: the pipeline does not wait for it."""

    import_checkpoint = Traits(
        "import-checkpoint",
        queue=Queue.accelerator,
        compute=lambda config: config.train.compute,
        laboratory=True,
    )
    publish = Traits(
        "publish",
        compute=lambda config: config.publish.compute,
    )


Work = Stage | Chore
WORKS: tuple[Work, ...] = (*Stage, *Chore)


def compute_of(config: Config, work: Work) -> Compute:
    """Return the compute of a stage: its own, else the one at the top of the configuration."""
    return work.traits.compute(config) or config.compute


def workers_of(config: Config, work: Work) -> int:
    """Return the number of worker processes of a stage."""
    return work.traits.workers(config)


def machines_of(config: Config, work: Work, workers: int) -> int:
    """Return the number of machines that a stage's workers fill; a local worker counts as one."""
    return workers if compute_of(config, work) == "local" else config.batch.nodes_of(work.value, workers)


def instance_of(config: Config, work: Work) -> str | None:
    """Return the instance type of a stage's machines; None if the configuration names none."""
    if compute_of(config, work) == "local":
        return LOCAL_WORKER
    batch = config.batch
    if work is Stage.infer and batch.infer is not None:
        return batch.infer.instance
    return batch.cpu_instance if work.traits.queue is Queue.cpu else batch.accelerator_instance


class Place(NamedTuple):
    """The machines of a stage."""

    instance: str | None  # instance type, or LOCAL_WORKER; None: the configuration names none
    machines: int  # a local worker counts as one
    workers: int

    @property
    def is_local(self) -> bool:
        return self.instance == LOCAL_WORKER


def place_of(config: Config, work: Work) -> Place:
    """Return the machines of a stage."""
    workers = workers_of(config, work)
    return Place(instance_of(config, work), machines_of(config, work, workers), workers)


def stages_in(phase: BackfillPhase) -> tuple[Stage, ...]:
    """Return the stages that a backfill does in one phase, in order."""
    return tuple(stage for stage in Stage if stage.traits.backfill is phase)
