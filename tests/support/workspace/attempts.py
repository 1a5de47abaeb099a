"""Records of attempts and of forward scores, for work that was not done."""

from __future__ import annotations

import datetime as dt

from infra.store.base import Store
from tasks.contracts.evaluation import ForwardScore
from tasks.contracts.outcomes import Phases
from tasks.contracts.stages import Chore, Stage
from tasks.contracts.workspace import VERDICTS
from tasks.foundation.errors import FailureClass
from tasks.runs.ledger import LedgerRecord
from tasks.runs.results import read_judgement
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


def give_score(store: Store, run_key: str, span: str, release: int, points: float, error: float = 0.1) -> None:
    """Let a run have measured `release` on its span, `points` better than the one before it, within `error` points."""
    judged = read_judgement(store, run_key)
    assert judged is not None
    score = ForwardScore(
        release=release, span=span, rows=10_000, metric="recall@10", value=0.5 + points / 100,
        previous=release - 1, previous_value=0.5, low=(points - error) / 100, high=(points + error) / 100,
        untrained=None, challenger=None,
    )  # fmt: skip
    store.write(VERDICTS.key(run=run_key), judged.model_copy(update={"forward": score}).to_json())
