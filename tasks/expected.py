"""How long a stage, or the rest of a run, should take and cost: medians over what the ledger has of earlier runs.

Only successful attempts are looked at, so an expectation is that of a run in which nothing fails. Where nothing is on
record there is none.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from pydantic import Field

from configs.schema import Config
from infra.manifest import read_manifest
from infra.store import Store
from tasks import ledger, releases
from tasks.contracts import RowsRef, RunPlan, SpanRef, Stage
from tasks.errors import StoreError
from tasks.ledger import LedgerRecord
from tasks.plan import read_plan
from tasks.records import Record
from tasks.results import result_key

ATTEMPTS = 5  # the last successful ones of a stage, of which the median is taken
_BY_ROWS = frozenset({Stage.validate, Stage.train, Stage.infer})  # the others do what doesn't grow with the input


class Expected(Record):
    """What some work should take, queue and boot included."""

    seconds: float = Field(description="wall time")
    dollars: float
    attempts_seen: int = Field(description="successful attempts that this is told from; the fewest of all stages")


class Past(NamedTuple):
    """What expectations are told from: attempts, and by run key the rows of each span of that run's window."""

    records: Sequence[LedgerRecord]
    rows: Mapping[str, Sequence[int]]


def past(store: Store, history: Sequence[RowsRef]) -> Past:
    """The attempts of the last runs in `history`, a lineage's consumed spans, and their rows.

    Where those did not come to some stage, the runs of the last releases tell of it. Runs that can't be read are left
    out; a year of runs costs no more to ask than a month.
    """
    keys = list(dict.fromkeys(rows.prefix.split("/")[1] for rows in history))[-ATTEMPTS:]
    records = _records(store, keys)
    if not {record.stage for record in records if record.failure is None} >= set(Stage):
        released = [key for key in _released(store) if key not in keys]
        keys, records = [*keys, *released], [*records, *_records(store, released)]
    return Past(records, {key: rows for key in keys if (rows := _rows_of_run(store, key)) is not None})


def expected_stage(
    past: Past, stage: Stage, rows: Sequence[int] | None = None, workers: int | None = None
) -> Expected | None:
    """What a stage should take; None where the past has no successful attempt of it.

    Args:
        rows: of each span of the window. The time that validate, train and infer spent on work is scaled by them.
        workers: attempts with as many are preferred, if there are any.
    """
    done = [one for one in past.records if one.stage is stage and one.ended_at is not None and one.failure is None]
    done = [one for one in done if one.workers == workers] or done
    last = sorted(done, key=lambda one: one.started_at)[-ATTEMPTS:]
    if not last:
        return None
    scaled = [_scaled(one, _ratio(stage, rows, past.rows.get(one.run_key))) for one in last]
    return Expected(
        seconds=round(statistics.median(seconds for seconds, _ in scaled), 3),
        dollars=statistics.median(dollars for _, dollars in scaled),
        attempts_seen=len(last),
    )


def expected_work(
    past: Past, config: Config, stages: Iterable[Stage], rows: Sequence[int] | None = None
) -> Expected | None:
    """What several stages over one window should take, one after the other; None where one of them was never done."""
    each = [expected_stage(past, stage, rows, workers_of(config, stage)) for stage in stages]
    known = [one for one in each if one is not None]
    if len(known) < len(each):
        return None
    return Expected(
        seconds=round(sum(one.seconds for one in known), 3),
        dollars=sum(one.dollars for one in known),
        attempts_seen=min((one.attempts_seen for one in known), default=0),
    )


def expected_run(store: Store, plan: RunPlan, done: Collection[Stage] | None = None) -> float | None:
    """Seconds from now until the plan's run ends; None where a stage that is left was never done.

    Args:
        done: the stages to leave out; by default those that have a result.
    """
    if done is None:
        there = set(store.list(f"runs/{plan.run_key}"))
        done = {stage for stage in Stage if result_key(plan.run_key, stage) in there}
    left = [stage for stage in Stage if stage not in done]
    if not left:
        return 0.0
    expected = expected_work(past(store, plan.history), plan.config, left, rows_of(store, plan.window))
    return expected.seconds if expected else None


def rows_of(store: Store, window: Iterable[SpanRef]) -> tuple[int, ...] | None:
    """The rows that each span was ingested with; None where a manifest does not tell."""
    try:
        facts = [read_manifest(store, span.prefix).facts for span in window]
    except StoreError:
        return None
    rows = [one.get("rows") for one in facts]
    return tuple(one for one in rows if isinstance(one, int)) if all(isinstance(one, int) for one in rows) else None


def workers_of(config: Config, stage: Stage) -> int:
    """How many workers a stage is run with."""
    match stage:
        case Stage.health | Stage.warmup | Stage.train:
            return config.train.workers
        case Stage.infer:
            return config.infer.workers
        case _:
            return 1


def _released(store: Store) -> list[str]:
    """Keys of the runs behind the current release and those before it, oldest first."""
    keys: list[str] = []
    with contextlib.suppress(StoreError):
        release = releases.current(store)
        while release is not None and len(keys) < ATTEMPTS:
            keys.insert(0, release.run_key)
            release = releases.read(store, release.previous) if release.previous is not None else None
    return keys


def _records(store: Store, keys: Iterable[str]) -> list[LedgerRecord]:
    found: list[LedgerRecord] = []
    for key in keys:
        with contextlib.suppress(StoreError):  # a damaged record must not stop those who only want to know how long
            found += ledger.records(store, key)
    return found


def _rows_of_run(store: Store, run_key: str) -> tuple[int, ...] | None:
    try:
        return rows_of(store, read_plan(store, run_key).window)
    except StoreError:
        return None


def _ratio(stage: Stage, rows: Sequence[int] | None, then: Sequence[int] | None) -> float:
    """How much more input there is than there was; 1 where that is not known or does not matter."""
    if stage not in _BY_ROWS or not rows or not then:
        return 1.0
    if stage is Stage.infer:  # makes vectors of the window's last span only
        rows, then = rows[-1:], then[-1:]
    return sum(rows) / sum(then) if sum(then) else 1.0


def _scaled(record: LedgerRecord, ratio: float) -> tuple[float, float]:
    """Seconds and dollars, had the attempt had `ratio` times the input; what is no work takes as long as it did."""
    wall = record.wall_seconds
    seconds = wall + (ratio - 1) * record.seconds.productive
    return seconds, record.cost * seconds / wall if wall else record.cost
