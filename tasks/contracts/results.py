"""The end of an attempt: `result.json` of a finished stage, or the error file of a failed worker.

`kept.json` has the work of a running attempt that would survive if it were killed.
"""

from typing import Literal

from pydantic import Field

from tasks.contracts.outcomes import Outcome
from tasks.foundation.records import Record


class Phases(Record):
    """An attempt's wall time in seconds by phase; the phases add up to it, apart from rounding.

    A finished attempt lost nothing. A failed one was productive up to its last checkpoint (infer: its last shard); its
    later work is lost, since it is repeated. All work is lost if none was kept, for example if health refused the
    machines. A killed attempt leaves no account: all seconds after its last checkpoint are lost. Training a model that
    the gates refuse is not lost: the refusal is a result.
    """

    queued: float = Field(default=0.0, description="seconds of waiting for machines, which cost nothing")
    booting: float = Field(
        default=0.0, description="seconds of starting and ending containers and processes, of imports and checks"
    )
    compiling: float = Field(default=0.0, description="seconds of making graphs, or of reading compiled ones back")
    restoring: float = Field(default=0.0, description="seconds of reading the model, the checkpoint and the rows")
    productive: float = Field(default=0.0, description="seconds of work on steps, rows and vectors that was kept")
    lost: float = Field(default=0.0, description="seconds of a failed attempt's work that is done again")

    @property
    def total(self) -> float:
        return sum(getattr(self, phase) for phase in Phases.model_fields)

    @property
    def paid(self) -> float:
        """Seconds in which the machines were held."""
        return self.total - self.queued


class KeptWork(Record):
    """`kept.json` of an attempt: its seconds until its last checkpoint or shard, which survives a kill."""

    version: Literal[1] = 1
    phases: Phases


class StageResult(Record):
    """`result.json`: written last, after all outputs are complete and checksummed."""

    version: Literal[1] = 1
    run_key: str
    attempt: int
    config_sha256: str
    phases: Phases
    outcome: Outcome = Field(discriminator="stage")


class WorkerFailure(Record):
    """`error-rank<r>.json`: the failure of one worker process; the earliest among the ranks is the root cause."""

    version: Literal[1] = 1
    rank: int
    at: float = Field(description="seconds since the epoch")
    failure: str
    message: str
    traceback: str
    phases: Phases
