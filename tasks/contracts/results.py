"""How an attempt ended: `result.json` of a stage that is done, the error file of a worker that failed."""

from typing import Literal

from pydantic import Field

from tasks.contracts.outcomes import Outcome
from tasks.foundation.records import Record


class Phases(Record):
    """Where the seconds of an attempt went. They add up to its wall time, apart from rounding."""

    queued: float = 0.0
    booting: float = 0.0
    compiling: float = 0.0
    restoring: float = 0.0
    productive: float = 0.0
    lost: float = 0.0


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
