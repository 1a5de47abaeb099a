"""Monthly sums of refreshes and publications, since 26,000 of them in three years are too many to read one by one.

The sums are derived. Open work (`open/<run key>`) is added up from its records. A release that is neither in the sums
nor open shows that a month was lost: then the records of all missing rows are read, and the next summing process
writes them again. An outage is from the failure of an attempt until work continues.
"""

import contextlib
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field, ValidationError, model_validator

from infra.store.base import Conflict, Store
from tasks.contracts.kinds import is_refresh, run_of
from tasks.contracts.outcomes import InferOutcome, Outcome
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import NUMBER, PACKED_SUMS, RESULT
from tasks.foundation.records import Record
from tasks.runs.ledger import LedgerRecord, marked_open, read_mark, unmark
from tasks.runs.releases import Numbered
from tasks.runs.run import Run, ledgers_in
from tasks.runs.snapshot import Snapshot, read_all
from tasks.runs.sums import Sums, sums_of

_log = logging.getLogger("millrace")


class WorkSums(Sums):
    """One refresh, or all publications of a release to a target; the file leaves out zeros and empty fields."""

    began_at: str
    release: int | None = Field(default=None, description="release that a refresh made")
    unreadable: int = Field(default=0, description="records that are left out")

    @model_validator(mode="before")
    @classmethod
    def _of_listed_recoveries(cls, row: Any) -> Any:
        """Months of version 0.1 list the seconds of each recovery, and count no runs."""
        if isinstance(row, dict) and isinstance(took := row.get("recoveries", ()), list | tuple) and "runs" not in row:
            return row | {"runs": 1, "recoveries": len(took), "recovery_seconds": round(sum(took), 3)}
        return row

    @property
    def whole(self) -> bool:
        """True if all attempts ended and all records could be read."""
        return not self.running and not self.unreadable


class Month(Record):
    """`packs/sums/<month>.json`: finished work that began in a month, by run key."""

    version: Literal[1] = 1
    rows: dict[str, WorkSums]


class Work(NamedTuple):
    """Every refresh and publication that has begun, by run key; and a sentence for each record that is not readable."""

    rows: Mapping[str, WorkSums]
    problems: tuple[str, ...]


def work_sums(store: Store, known: Iterable[int], newest: int | None) -> Work:
    """Return every refresh and publication that has begun.

    Args:
        known: numbers of the releases of runs.
        newest: the highest number of a release.

    Raises:
        StoreError: the workspace could not be read.
    """
    marked = marked_open(store)  # first, since work that is summed up meanwhile gets a row
    rows = {run_key: row for _, month in _months(store).values() for run_key, row in month.rows.items()}
    opened = _read(store, marked)
    rows, problems = {**rows, **opened.rows}, opened.problems
    there = {*known, *(row.release for row in rows.values())}
    if newest is not None and len(there - {None}) < newest and not there.issuperset(range(1, newest + 1)):
        _log.warning("%s/%s lacks months; it is made again by the next run or report", store.uri, PACKED_SUMS.within())
        lost = _read(store, sorted(_begun(store) - rows.keys()))
        rows, problems = {**rows, **lost.rows}, (*problems, *lost.problems)
    return Work(rows, problems)


def begun_in(store: Store, months: Iterable[str]) -> list[WorkSums]:
    """Return the refreshes and publications that began in these months, as in `2026-11`, and all open ones.

    Raises:
        StoreError: the workspace could not be read.
    """
    opened = _read(store, marked_open(store)).rows  # first, as in `work_sums`
    found = _months(store, [PACKED_SUMS.key(month=month) for month in sorted(set(months))]).values()
    return list({**{run_key: row for _, month in found for run_key, row in month.rows.items()}, **opened}.values())


def sum_up(store: Store) -> None:
    """Add up finished, readable work that is marked as open. Another process may do the same.

    Raises:
        StoreError: the workspace could not be read or written.
    """
    marks = {run_key: read_mark(store, run_key) for run_key in marked_open(store)}
    _write(store, {key: row for key, row in _read(store, marks).rows.items() if row.whole}, marks)


def sum_up_lost(store: Store, known: Iterable[int], newest: int | None) -> None:
    """Restore the rows of lost months. Takes and raises the same as `work_sums`."""
    there = {run_key for _, month in _months(store).values() for run_key in month.rows}
    rows = work_sums(store, known, newest).rows
    _write(store, {key: row for key, row in rows.items() if key not in there and row.whole}, {})


def _write(store: Store, rows: Mapping[str, WorkSums], marks: Mapping[str, bytes | None]) -> None:
    """Add rows to their months; then remove the marks that have not changed."""
    months: dict[str, dict[str, WorkSums]] = {}
    for run_key, row in rows.items():
        months.setdefault(row.began_at[:7], {})[run_key] = row
    for name, new in months.items():
        key = PACKED_SUMS.key(month=name)
        before, month = _months(store, [key])[key]
        data = (
            Month(rows=month.rows | new).model_dump_json(exclude_defaults=True, exclude_computed_fields=True).encode()
        )
        with contextlib.suppress(Conflict):  # another process sums up too; the marks stay for the next
            store.swap(key, data, expected=before)
            for run_key in new:
                if marks.get(run_key) is not None and read_mark(store, run_key) == marks[run_key]:
                    unmark(store, run_key)


def _months(store: Store, keys: Sequence[str] | None = None) -> dict[str, tuple[bytes | None, Month]]:
    """Return the months with their bytes; one that can't be read is made again."""
    found = {}
    for key, data in read_all(store, store.list(PACKED_SUMS.within()) if keys is None else keys).items():
        try:
            month = Month.model_validate_json(data or b"")
        except ValidationError:
            month = Month(rows={})
        found[key] = data, month
    return found


def _begun(store: Store) -> set[str]:
    return {run_of(key) for root in ("refreshes", "publications") for key in store.list(root)}


def _read(store: Store, run_keys: Collection[str]) -> Work:
    """Add up the records of these; those without an attempt are left out."""
    snapshot = Snapshot(store)
    works = [Run(snapshot, run_key) for run_key in run_keys]
    keys = [key for work in works for key in ledgers_in(snapshot.keys(work.run_key))]
    numbers = {run_key: NUMBER.key(run=run_key) for run_key in run_keys}
    snapshot.fetch([*keys, *numbers.values(), *(RESULT.key(run=key, stage=Stage.infer) for key in run_keys)])
    rows = {}
    for work in works:
        before = len(snapshot.problems)
        attempts, made = work.attempts, work.outcome(Stage.infer)
        number = snapshot.read(numbers[work.run_key], Numbered)
        if attempts:
            row = _sums(work.run_key, attempts, number, made)
            rows[work.run_key] = row.model_copy(update={"unreadable": len(snapshot.problems) - before})
    return Work(rows, tuple(snapshot.problems))


def _sums(run_key: str, records: Sequence[LedgerRecord], number: Numbered | None, made: Outcome | None) -> WorkSums:
    return WorkSums(
        began_at=min(record.started_at for record in records),
        release=number.number if number is not None and is_refresh(run_key) else None,
        **dict(sums_of(records, made.vectors_made if isinstance(made, InferOutcome) else 0)),
    )
