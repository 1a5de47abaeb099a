"""What chaos needs of a place where runs happen. A place is made for one campaign, and has run undisturbed before."""

import signal
from typing import NamedTuple, Protocol

from infra.store.base import Store
from tasks.contracts.stages import Stage
from tests.benchmarks.chaos.draws import Act, Draw


class Ended(NamedTuple):
    """How a command ended. A negative `code` is the signal that killed it; None: it had to be ended."""

    code: int | None
    out: str
    err: str


class Running(Protocol):
    """A `millrace run` that was started."""

    @property
    def over(self) -> bool: ...
    def send(self, number: signal.Signals) -> None:
        """Send a signal to the orchestrator alone."""
        ...

    def send_all(self, number: signal.Signals) -> None:
        """Send a signal to the orchestrator and to the workers that it started on its machine."""
        ...

    def finish(self) -> Ended:
        """Wait for its end."""
        ...


class Scene(Protocol):
    """A workspace as it stood before a stage of the run, in which the same command can be run, and be disturbed."""

    store: Store

    def start(self) -> Running: ...
    def began(self, stage: Stage) -> bool:
        """Return whether an attempt of the stage has begun in this scene."""
        ...

    def workers(self) -> list[int]:
        """Return the process ids of the workers that are at work."""
        ...

    def server(self) -> int | None:
        """Return the process group of the Prefect server; None where none runs."""
        ...

    def falter(self, act: Act) -> None:
        """Begin with store errors, store delays or a full disk."""
        ...

    def recover(self) -> None:
        """End what `falter` began."""
        ...

    def left_over(self) -> list[str]:
        """Return processes, jobs, locks and temporary files that no ended command should leave, a sentence each."""
        ...

    def close(self, keep: bool) -> str:
        """End what still runs; delete the workspace, or keep it for a look. Return where it is."""
        ...


class Undisturbed(NamedTuple):
    """The run that nothing disturbs."""

    stage_seconds: dict[Stage, float]  # from the start of one to the start of the next
    boot_seconds: float  # from the start of the command to that of the first stage
    tail_seconds: float  # from the end of the last stage to that of the command
    content: dict[str, str]  # key -> SHA-256, see invariants.py

    def until_next(self, stage: Stage) -> float:
        """Return what a stage takes; the first one begins with the command."""
        return self.stage_seconds[stage] + (self.boot_seconds if stage is Stage.validate else 0.0)

    def seconds(self, first: Stage) -> float:
        """Return what the stages from `first` on take, with the command around them."""
        stages = tuple(Stage)
        left = stages[stages.index(first) :]
        return self.boot_seconds + sum(self.stage_seconds[stage] for stage in left) + self.tail_seconds


class Place(Protocol):
    """Where runs happen: this machine, or a cloud that the tests emulate."""

    name: str
    whole_share: float  # of the runs that begin with their first stage, from 0 to 1
    undisturbed: Undisturbed

    def scene(self, draw: Draw) -> Scene: ...
    def stop(self) -> None:
        """End what serves the runs."""
        ...


def first_stage(draw: Draw) -> Stage:
    """Return the first stage that has to be done in a draw's scene."""
    return Stage.validate if draw.whole else draw.stage
