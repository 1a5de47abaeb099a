"""How an attempt ended: `result.json` of a stage that is done, the error file of a worker that failed.

And, while it goes on, what of its work is kept should it be killed.
"""

from typing import Literal

from pydantic import Field

from tasks.contracts.outcomes import Outcome
from tasks.foundation.records import Record


class Phases(Record):
    """Where the seconds of an attempt went. They add up to its wall time, apart from rounding.

    An attempt that is done lost nothing. One that failed was productive up to its last checkpoint (of infer: shard),
    and what came after is lost, since it is done again. It lost all of its work if it kept none, as where health
    refused its machines. A killed one leaves no account: all seconds after its last checkpoint are lost. What a model
    took that the gates refuse is not lost: the refusal is a result.
    """

    queued: float = Field(default=0.0, description="seconds of waiting for machines, which cost nothing")
    booting: float = Field(default=0.0, description="seconds of starting and ending containers and processes")
    compiling: float = Field(default=0.0, description="seconds of making graphs, or of reading compiled ones back")
    restoring: float = Field(default=0.0, description="seconds of reading the model, the checkpoint and the rows")
    productive: float = Field(default=0.0, description="seconds of work that was kept")
    lost: float = Field(default=0.0, description="seconds of a failed attempt's work that is done again")

    @property
    def total(self) -> float:
        return sum(getattr(self, phase) for phase in Phases.model_fields)

    @property
    def paid(self) -> float:
        """Seconds in which the machines were held."""
        return self.total - self.queued


class KeptWork(Record):
    """`kept.json` of an attempt: its seconds until its last checkpoint, or shard, which stays if it is killed."""

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
    """`error-rank<r>.json`: how one worker process died; the earliest among the ranks is the root cause."""

    version: Literal[1] = 1
    rank: int
    at: float = Field(description="seconds since the epoch")
    failure: str
    message: str
    traceback: str
    phases: Phases
