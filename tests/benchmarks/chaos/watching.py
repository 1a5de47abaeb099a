"""What an undisturbed run took, stage by stage, and what it left: the measure of the disturbed ones."""

import datetime as dt

from infra.store.base import Store
from tasks.contracts.stages import Stage
from tasks.foundation.errors import CodeError
from tasks.runs import ledger
from tests.benchmarks.chaos.invariants import content
from tests.benchmarks.chaos.place import Undisturbed


def watched(store: Store, run_key: str, started: float, ended: float) -> Undisturbed:
    """Return the seconds and the content of the run `run_key`, whose command ran from `started` to `ended`.

    Args:
        started: seconds since 1970.
        ended: seconds since 1970.

    Raises:
        CodeError: a stage took more than one attempt, or none.
    """
    records = ledger.records(store, run_key)
    if tuple(record.stage for record in records) != tuple(Stage):
        raise CodeError(f"the undisturbed run has other attempts than one of each stage: {records}")
    begins = [_seconds(record.started_at) for record in records]
    end = _seconds(records[-1].ended_at or records[-1].started_at)
    lengths = [after - before for before, after in zip(begins, [*begins[1:], end], strict=True)]
    return Undisturbed(
        stage_seconds=dict(zip(Stage, lengths, strict=True)),
        boot_seconds=begins[0] - started,
        tail_seconds=ended - end,
        content=content(store),
    )


def _seconds(moment: str) -> float:
    return dt.datetime.fromisoformat(moment).timestamp()
