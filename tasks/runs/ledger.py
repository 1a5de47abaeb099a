"""The ledger: one record for every attempt of every stage, next to its spec in the workspace.

A record is opened when the attempt starts and closed when it ends. If the orchestrator is killed in between, the next
attempt closes it, with the times of its last sign of life. Goodput, success rate and cost are sums over the records.

Refreshes and publications that are not summed up yet have a mark, `open/<run key>`, made before the first attempt:
work without a mark and without a row in the sums has never begun. Runs need no marks: their folders are few enough
to list.
"""

import datetime as dt
from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field

from configs.prices import cost_of, price_of, repriced
from configs.schema.operations import Charge, CostConfig, Price, PriceList
from infra.root_cause import worker_failures
from infra.store.base import Store
from infra.store.records import find_record, read_record, update_record
from tasks.contracts.jobs import BatchAttempt, JobSpec
from tasks.contracts.kinds import PUBLICATION, REFRESH, ROOTS, run_folder
from tasks.contracts.outcomes import KeptWork, Phases
from tasks.contracts.stages import Work, instance_of, machines_of
from tasks.contracts.workspace import KEPT_WORK, LEDGER, OPEN, SEEN
from tasks.foundation.clock import Moment, now
from tasks.foundation.errors import FailureClass, classify
from tasks.foundation.records import Record
from tasks.runs.results import UnusableResult, read_result


def mark_open(store: Store, run_key: str, attempt: str) -> None:
    """Mark a refresh or a publication before an attempt; nothing happens for a run."""
    if run_key.startswith((REFRESH, PUBLICATION)):
        store.write(OPEN.key(run=run_key), attempt.encode())


def marked_open(store: Store) -> list[str]:
    """Return the run keys that are marked."""
    return [found["run"] for key in store.list(OPEN.within()) if (found := OPEN.match(key))]


def read_mark(store: Store, run_key: str) -> bytes | None:
    """Return the content of a mark, which changes with each attempt; None without a mark."""
    try:
        return store.read(OPEN.key(run=run_key))
    except FileNotFoundError:
        return None


def unmark(store: Store, run_key: str) -> None:
    store.delete(OPEN.key(run=run_key))


_WAY_OUT = "move the file away"


class LedgerRecord(Record):
    """`<stage>/attempt-<n>/ledger.json` in the folder of a run. Times are ISO 8601 in UTC."""

    run_key: str
    span: str
    stage: Work
    attempt: int = Field(description="number of the attempt within its stage, from 1")
    failure: FailureClass | None = Field(description="failure class; null: done, or not ended yet")
    message: str
    started_at: Moment
    ended_at: Moment | None = Field(description="end; null: still running, or its orchestrator was killed")
    seconds: Phases = Field(description="seconds by phase")
    workers: int
    machines: int = Field(description="machines that it held; a local worker counts as one")
    instance: str | None = Field(description="instance type of its machines; null: the configuration names none")
    instance_seen: bool = Field(
        default=False, description="true: AWS Batch named the instance type; false: it is the configured one"
    )
    price: Price | None = Field(description="price of one machine at that time; null: not known")
    billable_seconds: float = Field(
        default=0.0, description="seconds that the machines were held, added up over the machines; without the queue"
    )
    job: str = Field(default="", description="id of the AWS Batch job, with the number of its try")
    hosts: tuple[str, ...] = Field(default=(), description="hosts that it ran on")

    @property
    def wall_seconds(self) -> float:
        return self.seconds.total

    @property
    def charge(self) -> Charge:
        return Charge(instance=self.instance, price=self.price, billable_seconds=self.billable_seconds)

    @property
    def cost(self) -> float | None:
        """The cost in dollars, at the price of that time; None if the price of its machines is not known."""
        return self.charge.cost


class PricedAttempt(LedgerRecord):
    """A ledger record as reports give it: with its cost, which the file does not repeat."""

    spent: float | None = Field(
        alias="cost", description="cost in dollars, at the price of that time; null: the price is not known"
    )

    repriced: float | None = Field(
        default=None, description="cost at the prices of --prices; null: not asked for, or the machine has none there"
    )

    @classmethod
    def of(cls, record: LedgerRecord, lists: Sequence[PriceList] = ()) -> Self:
        own = {name: getattr(record, name) for name in LedgerRecord.model_fields}
        again = cost_of(repriced([record.charge], lists)) if lists else None
        return cls(**own, cost=record.cost, repriced=again)


class SignOfLife(Record):
    """`seen.json` of an attempt: its orchestrator ran at this time, `seconds` after it had started the attempt."""

    version: Literal[1] = 1
    at: Moment
    seconds: float


class OpenAttempt:
    """An attempt on record that has not ended. One process ends it; if another took over, that one's end counts."""

    def __init__(self, store: Store, record: LedgerRecord) -> None:
        self._store, self.record = store, record

    @classmethod
    def begin(cls, store: Store, spec: JobSpec) -> Self:
        """Open the record of an attempt."""
        instance = instance_of(spec.config, spec.stage)
        mark_open(store, spec.run_key, f"{spec.stage} {spec.attempt}")
        record = LedgerRecord(
            run_key=spec.run_key,
            span=spec.span.name,
            stage=spec.stage,
            attempt=spec.attempt,
            failure=None,
            message="",
            started_at=now(),
            ended_at=None,
            seconds=Phases(),
            workers=spec.workers,
            machines=machines_of(spec.config, spec.stage, spec.workers),
            instance=instance,
            price=price_of(instance, spec.config.cost),
        )
        store.write(LEDGER.of(record), record.to_json())
        return cls(store, record)

    def numbered(self, number: int) -> Self:
        """Return a retry that AWS Batch made of it, which has another number and no record yet."""
        return type(self)(self._store, self.record.model_copy(update={"attempt": number}))

    def see(self, seconds: float) -> None:
        """Record that it still runs, `seconds` after it was started. Raises StoreError, OSError: not written."""
        self._store.write(SEEN.of(self.record), SignOfLife(at=now(), seconds=round(seconds, 3)).to_json())

    def end(self, wall_seconds: float, error: BaseException | None = None) -> LedgerRecord:
        """Close the record after `wall_seconds`; no `error` means success.

        The phases are read from the result or the error files of the workers; the
        time to start and end their processes counts as booting. If a failed attempt left no such file, all seconds
        after its last checkpoint are lost.
        """
        if error is None:
            return self._close(None, "", self._done_phases() or Phases(), wall_seconds)
        phases = self._failed_phases(wall_seconds)
        return self._close(classify(error), str(error) or type(error).__name__, phases, wall_seconds)

    def end_tries(self, tries: Sequence[BatchAttempt], cost: CostConfig) -> None:
        """Close the record of an attempt that was made on rented machines, and write closed ones for its retries.

        Ends of earlier retries are counted back from now, by the clock of AWS.
        """
        closed_at = dt.datetime.fromisoformat(now())
        for retry in tries:
            last = tries[-1].stopped_at
            ago = last - retry.stopped_at if last is not None and retry.stopped_at is not None else 0.0
            ended_at = closed_at - dt.timedelta(seconds=max(0.0, ago))
            self.numbered(retry.attempt)._end_try(retry, ended_at, cost, is_first=retry is tries[0])

    def close_abandoned(self) -> LedgerRecord:
        """Close the record if its orchestrator died; call it while no other process can run the stage."""
        sign = find_record(self._store, SEEN.of(self.record), SignOfLife, _WAY_OUT)
        if (done := self._done_phases()) is not None:
            return self._close(None, "", done, 0.0, sign)
        phases = self._failed_phases(sign.seconds if sign else 0.0)
        why = "the orchestrator was lost while this attempt ran"
        return self._close(FailureClass.HOST, why, phases, 0.0, sign)

    def _end_try(self, retry: BatchAttempt, ended_at: dt.datetime, cost: CostConfig, is_first: bool) -> None:
        record = self.record
        if retry.failure:
            phases = self._failed_phases(retry.running)
        else:
            phases = self._done_phases() or Phases(productive=retry.running)
        # Time of the container and the launcher before and after the worker.
        around = max(0.0, retry.running - phases.total)
        seconds = phases.model_copy(
            update={"queued": round(retry.queued, 3), "booting": round(phases.booting + retry.booting + around, 3)}
        )
        started_at = ended_at - dt.timedelta(seconds=seconds.total)
        seen = retry.instance or record.instance
        changes = {
            "started_at": record.started_at if is_first else started_at.isoformat(timespec="microseconds"),
            "instance": seen,
            "instance_seen": retry.instance is not None,
            "price": record.price if seen == record.instance else price_of(seen, cost),
            "failure": retry.failure,
            "message": retry.message,
            "ended_at": ended_at.isoformat(timespec="microseconds"),
            "seconds": seconds,
            "machines": retry.machines,
            "billable_seconds": retry.billable_seconds,
            "job": retry.job,
            "hosts": retry.hosts,
        }
        self._write_end(record.model_copy(update=changes))

    def _close(
        self,
        failure: FailureClass | None,
        message: str,
        phases: Phases,
        wall_seconds: float,
        sign: SignOfLife | None = None,
    ) -> LedgerRecord:
        around = max(0.0, wall_seconds - phases.total)
        seconds = phases.model_copy(update={"booting": round(phases.booting + around, 3)})
        changes = {
            "failure": failure,
            "message": message,
            "ended_at": sign.at if sign else now(),
            "seconds": seconds,
            "billable_seconds": round(seconds.paid * self.record.machines, 3),
        }
        return self._write_end(self.record.model_copy(update=changes))

    def _write_end(self, closed: LedgerRecord) -> LedgerRecord:
        """Write the closed record unless the process that took over has closed it; return the one on record."""
        there = update_record(
            self._store,
            LEDGER.of(closed),
            LedgerRecord,
            lambda there: None if there and there.ended_at else closed,
            _WAY_OUT,
        )
        return there or closed

    def _done_phases(self) -> Phases | None:
        """Return the worker's phases; None unless the stage's result is of this attempt."""
        try:
            result = read_result(self._store, self.record.run_key, self.record.stage)
        except UnusableResult:
            return None
        return result.phases if result is not None and result.attempt == self.record.attempt else None

    def _failed_phases(self, wall_seconds: float) -> Phases:
        """Return the phases of the first worker to fail; its productive time after the last checkpoint counts as lost.

        If no worker left its phases, all of `wall_seconds` after that checkpoint are lost.
        """
        found = find_record(self._store, KEPT_WORK.of(self.record), KeptWork, _WAY_OUT)
        kept = found.phases if found else Phases()
        failures = worker_failures(self._store, self.record)
        if not failures:
            return kept.model_copy(update={"lost": round(max(0.0, wall_seconds - kept.total), 3)})
        phases = failures[0].phases
        productive = min(kept.productive, phases.productive)
        lost = round(phases.lost + phases.productive - productive, 3)
        return phases.model_copy(update={"productive": productive, "lost": lost})


def records(store: Store, run_key: str | None = None) -> list[LedgerRecord]:
    """Return the records of one run, or of the whole workspace, in the order in which the attempts started.

    Raises:
        StoreError: one is not readable; names the file.
    """
    keys = [key for root in ([run_folder(run_key)] if run_key else ROOTS) for key in store.list(root)]
    found = [read_record(store, key, LedgerRecord, _WAY_OUT) for key in keys if LEDGER.match(key)]
    return sorted(found, key=lambda record: record.started_at)
