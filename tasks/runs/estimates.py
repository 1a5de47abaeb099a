"""Estimates of the time and cost of a stage or of the rest of a run: medians over the ledgers of earlier runs.

Only successful attempts count, so an estimate assumes no failures.
"""

import contextlib
import itertools
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, assert_never

from pydantic import Field

from configs.prices import sum_dollars
from configs.schema.config import Config
from infra.store.base import Store
from infra.store.manifest import read_manifest
from tasks.contracts.kinds import REFRESH
from tasks.contracts.references import RowsRef, SpanRef
from tasks.contracts.runs import RunPlan
from tasks.contracts.stages import Rows, Stage, workers_of
from tasks.foundation.errors import StoreError
from tasks.foundation.records import Record
from tasks.runs import releases
from tasks.runs.ledger import LedgerRecord
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

ATTEMPTS = 5  # the last successful ones of a stage, of which the median is taken


class Estimate(Record):
    """Expected time and cost of some work, queue and boot included."""

    seconds: float = Field(description="wall time")
    dollars: float | None = Field(description="cost; null: the price of a stage's machines is not known")
    attempts_seen: int = Field(description="successful attempts that this is estimated from; the fewest of all stages")


class Past(NamedTuple):
    """Input of estimates: attempts, and by run key the rows of each span of that run's window."""

    records: Sequence[LedgerRecord]
    rows: Mapping[str, Sequence[int]]


def past(snapshot: Snapshot, history: Sequence[RowsRef]) -> Past:
    """Return the attempts and rows of the last runs in `history`, the spans that a lineage has consumed.

    If none of those did a stage, the runs of the last releases are read too. Runs that can't be read are left out. The
    number of runs that are read is limited, however long the history is.
    """
    keys = list(dict.fromkeys(rows.prefix.split("/")[1] for rows in history))[-ATTEMPTS:]
    runs = [Run(snapshot, key) for key in keys]
    if not {record.stage for run in runs for record in run.attempts if record.failure is None} >= set(Stage):
        runs += [Run(snapshot, key) for key in _released(snapshot.store) if key not in keys]
    rows = {run.run_key: rows_of(snapshot.store, run.plan.window) for run in runs if run.plan is not None}
    records = [record for run in runs for record in run.attempts]
    return Past(records, {key: known for key, known in rows.items() if known is not None})


def estimate_stage(
    past: Past, stage: Stage, rows: Sequence[int] | None = None, workers: int | None = None
) -> Estimate | None:
    """Estimate a stage; None without an earlier successful attempt.

    Args:
        rows: rows of each span of the window; they scale the working time of validate, train and infer.
        workers: attempts with this number of workers are preferred, if any exist.
    """
    done = [one for one in past.records if one.stage is stage and one.ended_at is not None and one.failure is None]
    done = [one for one in done if one.workers == workers] or done
    last = sorted(done, key=lambda one: one.started_at)[-ATTEMPTS:]
    if not last:
        return None
    scaled = [_scaled(one, _ratio(stage, rows, past.rows.get(one.run_key))) for one in last]
    priced = [dollars for _, dollars in scaled if dollars is not None]
    return Estimate(
        seconds=round(statistics.median(seconds for seconds, _ in scaled), 3),
        dollars=statistics.median(priced) if priced else None,
        attempts_seen=len(last),
    )


def estimate_work(
    past: Past, config: Config, stages: Iterable[Stage], rows: Sequence[int] | None = None
) -> Estimate | None:
    """Estimate several stages over one window, one after the other; None if one of them was never done."""
    each = [estimate_stage(past, stage, rows, workers_of(config, stage)) for stage in stages]
    known = [one for one in each if one is not None]
    if len(known) < len(each):
        return None
    return Estimate(
        seconds=round(sum(one.seconds for one in known), 3),
        dollars=sum_dollars(one.dollars for one in known),
        attempts_seen=min((one.attempts_seen for one in known), default=0),
    )


def estimate_run(store: Store, plan: RunPlan) -> float | None:
    """Estimate the remaining seconds of a run; None if a remaining stage was never done."""
    expected = estimate_rest(store, plan)
    return expected.seconds if expected else None


def estimate_rest(store: Store, plan: RunPlan) -> Estimate | None:
    """Estimate the remaining stages of a run; None if one was never done."""
    snapshot = Snapshot(store)
    run = Run(snapshot, plan.run_key)
    left = [stage for stage in Stage if not run.stage(stage).done]
    if not left:
        return Estimate(seconds=0.0, dollars=0.0, attempts_seen=0)
    return estimate_work(past(snapshot, plan.history), plan.config, left, rows_of(store, plan.window))


def rows_of(store: Store, window: Iterable[SpanRef]) -> tuple[int, ...] | None:
    """Return the ingested rows of each span; None if a manifest doesn't record them."""
    try:
        facts = [read_manifest(store, span.prefix).facts for span in window]
    except StoreError:
        return None
    rows = [one.get("rows") for one in facts]
    return tuple(one for one in rows if isinstance(one, int)) if all(isinstance(one, int) for one in rows) else None


def _released(store: Store) -> list[str]:
    """Return the run keys of the current and earlier releases, oldest first, without refreshes."""
    keys: list[str] = []
    with contextlib.suppress(StoreError):
        trained = (each for each in releases.current_and_before(store) if not each.run_key.startswith(REFRESH))
        for release in itertools.islice(trained, ATTEMPTS):
            keys.insert(0, release.run_key)
    return keys


def _ratio(stage: Stage, rows: Sequence[int] | None, then: Sequence[int] | None) -> float:
    """Return the ratio of the input now to the input then; 1 if unknown, or if it doesn't matter."""
    if not rows or not then:
        return 1.0
    match stage.traits.time_grows_with:
        case Rows.window:
            now, before = sum(rows), sum(then)
        case Rows.span:
            now, before = rows[-1], then[-1]
        case Rows.none:
            return 1.0
        case unknown:
            assert_never(unknown)
    return now / before if before else 1.0


def _scaled(record: LedgerRecord, ratio: float) -> tuple[float, float | None]:
    """Return the seconds and dollars of an attempt with `ratio` times the input. Only its productive time grows."""
    wall = record.wall_seconds
    seconds = wall + (ratio - 1) * record.seconds.productive
    return seconds, record.cost * seconds / wall if wall and record.cost is not None else record.cost
