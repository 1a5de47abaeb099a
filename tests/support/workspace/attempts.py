"""Records of attempts that were not made."""

from __future__ import annotations

import datetime as dt

from tasks.contracts.outcomes import Phases
from tasks.contracts.stages import Chore, Stage
from tasks.foundation.errors import FailureClass
from tasks.runs.ledger import LedgerRecord
from tests.support.workspace.specs import price_at

BEGAN = dt.datetime(2026, 11, 20, 7, tzinfo=dt.UTC)


def attempt(
    number: int,
    minute: float,
    failure: FailureClass | None = None,
    stage: Stage | Chore = Stage.train,
    run_key: str = "run",
    **seconds: float,
) -> LedgerRecord:
    """One that began at a minute and took these seconds."""
    began, phases = BEGAN + dt.timedelta(minutes=minute), Phases(**seconds)
    return LedgerRecord(
        run_key=run_key,
        span="2026-11-19",
        stage=stage,
        attempt=number,
        failure=failure,
        message="",
        started_at=began.isoformat(),
        ended_at=(began + dt.timedelta(seconds=phases.total)).isoformat(),
        seconds=phases,
        workers=1,
        machines=1,
        instance="trn1.32xlarge",
        price=price_at(1.0),
        billable_seconds=phases.paid,
    )
