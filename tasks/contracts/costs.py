"""The cost of a run before it begins: seconds and dollars by stage, the memory of a worker, the speed of a training.

Each figure has its source. `planned.json` keeps them, so that a run can be compared with its plan.
"""

from typing import Literal

from pydantic import Field

from configs.schema.operations import Price
from tasks.contracts.outcomes import Phases
from tasks.contracts.stages import Stage
from tasks.foundation.clock import Moment
from tasks.foundation.records import Record

Basis = Literal["measured", "fitted", "published", "assumed"]


class StageCost(Record):
    """The expected time and cost of one stage, without failures."""

    stage: Stage
    instance: str | None = Field(description="instance type; `local worker`; null: the configuration names none")
    machines: int = Field(description="machines; a local worker counts as one")
    phases: Phases | None = Field(description="seconds by phase; null: not known")
    basis: Basis = Field(
        description="`measured` (attempts of this workspace), `fitted` (speeds of this workspace), `published`, "
        "`assumed`"
    )
    source: str = Field(description="origin of the seconds, in words; the reason if they are not known")
    attempts_seen: int = Field(description="successful attempts behind it; 0: none")
    price: Price | None = Field(description="price of one machine; null: not known")
    seconds: float | None = Field(description="wall time with queue and boot; null: not known")
    dollars: float | None = Field(
        description="cost at today's price; null: the time or the price is not known. Never 0 for lack of a price"
    )


class RunCost(Record):
    """The expected time and cost of a run, or of the rest of it."""

    stages: tuple[StageCost, ...]
    seconds: float | None = Field(description="wall time of all stages; null: that of a stage is not known")
    dollars: float | None = Field(description="cost of all stages; null: that of a stage is not known")
    unknown: tuple[str, ...] = Field(description="sentences: figures that are not known, and why")


class PlannedRun(Record):
    """`planned.json` of a run: its expected cost when it first began."""

    version: Literal[1] = 1
    run_key: str
    at: Moment = Field(description="time of the estimate")
    cost: RunCost


class Against(Record):
    """A stage's planned and actual figures; the stage `all` has the sums."""

    name: str
    planned_seconds: float | None
    actual_seconds: float | None = Field(description="wall time of the attempt that succeeded; null: not done here")
    planned_dollars: float | None
    actual_dollars: float | None

    @property
    def error(self) -> float | None:
        """The planned seconds as a share above the actual ones; None if one is not known."""
        if self.planned_seconds is None or not self.actual_seconds:
            return None
        return self.planned_seconds / self.actual_seconds - 1
