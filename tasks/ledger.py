"""The ledger: one record for every attempt of every stage, beside its spec in the workspace.

A record is opened when the attempt starts and closed when it ends, so that an attempt whose orchestrator was killed
is not forgotten: the next attempt closes it. Goodput, success rate and cost are sums over the records.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Sequence

from pydantic import Field, ValidationError

from infra.runner import Try
from infra.store import Store
from tasks.contracts import Chore, JobSpec, Phases, Stage, stage_prefix
from tasks.endings import worker_failures
from tasks.errors import FailureClass, StoreError, classify
from tasks.records import Record
from tasks.results import UnusableResult, read_result


class LedgerRecord(Record):
    """`runs/<run key>/<stage>/attempt-<n>/ledger.json`. Times are ISO 8601 in UTC."""

    run_key: str
    span: str
    stage: Stage | Chore
    attempt: int
    failure: FailureClass | None = Field(description="null: done, or not ended yet")
    message: str
    started_at: str
    ended_at: str | None = Field(description="null: it runs now, or its orchestrator was killed")
    seconds: Phases
    workers: int
    dollars_per_hour: float = Field(description="of all workers together")
    cost: float = Field(description="dollars")
    job: str = Field(default="", description="id of the AWS Batch job, with the number of its try")
    hosts: tuple[str, ...] = Field(default=(), description="machines that were had for it")

    @property
    def wall_seconds(self) -> float:
        return _total(self.seconds)


class Totals(Record):
    """Sums over ended attempts. A ratio is null while there is nothing to divide by."""

    runs: int
    attempts: int
    running: int = Field(description="attempts without an end on record")
    succeeded: int
    success_rate: float | None = Field(description="of attempts")
    goodput: float | None = Field(description="productive seconds over all seconds")
    cost: float = Field(description="dollars")
    dollars_per_million_vectors: float | None
    seconds: Phases
    attempts_by_class: dict[FailureClass, int]
    seconds_by_class: dict[FailureClass, float]


def now() -> str:
    """The time as it stands in records; strings compare as times do."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="microseconds")


def next_attempt(store: Store, run_key: str, stage: Stage | Chore) -> int:
    """One more than the last attempt that left anything behind."""
    prefix = stage_prefix(run_key, stage)
    names = {key.removeprefix(f"{prefix}/").partition("/")[0] for key in store.list(prefix)}
    numbers = (name.removeprefix("attempt-") for name in names if name.startswith("attempt-"))
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)


def last_spec(store: Store, run_key: str, stage: Stage | Chore) -> JobSpec | None:
    """The spec of the attempt that was started last; None where there is none that can be read."""
    last = next_attempt(store, run_key, stage) - 1
    while last:
        try:
            spec = JobSpec.model_validate_json(store.read(f"{stage_prefix(run_key, stage)}/attempt-{last}/spec.json"))
        except (FileNotFoundError, ValidationError):
            return None
        if spec.submitted_as == last:
            return spec
        last = spec.submitted_as  # what AWS Batch made of it by itself has copies
    return None


def begin(store: Store, spec: JobSpec) -> LedgerRecord:
    """Open the record of an attempt."""
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
        dollars_per_hour=spec.workers * spec.config.cost.dollars_per_worker_hour,
        cost=0.0,
    )
    store.write(_key(record), record.to_json())
    return record


def end(store: Store, record: LedgerRecord, wall_seconds: float, error: BaseException | None = None) -> LedgerRecord:
    """Close the record of an attempt that took `wall_seconds`; `error` is what ended it, None where it is done.

    What its workers measured of the phases is read from their result or error files; the rest of the wall time
    counts as queued. Where they left nothing, all of it is lost.
    """
    if error is None:
        return _close(store, record, None, "", _done_phases(store, record), wall_seconds)
    phases = _failed_phases(store, record) or Phases(lost=wall_seconds)
    return _close(store, record, classify(error), str(error) or type(error).__name__, phases, wall_seconds)


def end_tries(store: Store, first: LedgerRecord, tries: Sequence[Try]) -> None:
    """Close the record of an attempt that was made on rented machines, and open and close those of its retries."""
    for one in tries:
        record = first.model_copy(update={"attempt": one.attempt})
        measured = _failed_phases(store, record) if one.failure else _done_phases(store, record)
        phases = measured or (Phases(lost=one.running) if one.failure else Phases(productive=one.running))
        between = max(0.0, one.running - _total(phases))  # the container and the launcher, before and after the worker
        seconds = phases.model_copy(
            update={"queued": round(one.queued, 3), "booting": round(phases.booting + one.booting + between, 3)}
        )
        changes = {
            "failure": one.failure,
            "message": one.message,
            "ended_at": now(),
            "seconds": seconds,
            "dollars_per_hour": one.dollars_per_hour,
            "cost": one.cost,
            "job": one.job,
            "hosts": one.hosts,
        }
        store.write(_key(record), record.model_copy(update=changes).to_json())


def close_abandoned(store: Store, run_key: str, stage: Stage | Chore) -> list[LedgerRecord]:
    """Close the records of attempts whose orchestrator died; to be called while nobody else can run the stage."""
    closed = []
    for record in _read(store, stage_prefix(run_key, stage)):
        if record.ended_at is not None:
            continue
        if (done := _done_phases(store, record)) is not None:
            closed.append(_close(store, record, None, "", done, 0.0))
            continue
        phases = _failed_phases(store, record) or Phases()
        message = "the orchestrator was lost while this attempt ran"
        closed.append(_close(store, record, FailureClass.HOST, message, phases, 0.0))
    return closed


def of_stage(store: Store, run_key: str, stage: Stage | Chore) -> list[LedgerRecord]:
    """The records of one stage of a run, in the order in which the attempts started.

    Raises:
        StoreError: one is not readable; names the file.
    """
    return sorted(_read(store, stage_prefix(run_key, stage)), key=lambda record: record.started_at)


def records(store: Store, run_key: str | None = None) -> list[LedgerRecord]:
    """The records of one run, or of the whole workspace, in the order in which the attempts started.

    Raises:
        StoreError: one is not readable; names the file.
    """
    return sorted(_read(store, f"runs/{run_key}" if run_key else "runs"), key=lambda record: record.started_at)


def totals(ledger: Iterable[LedgerRecord], vectors: int) -> Totals:
    """Add up records; `vectors` is how many vectors the money was spent on."""
    ledger = list(ledger)
    ended = [record for record in ledger if record.ended_at is not None]
    succeeded = sum(record.failure is None for record in ended)
    seconds = Phases(
        **{phase: round(sum(getattr(r.seconds, phase) for r in ended), 3) for phase in Phases.model_fields}
    )
    cost = sum(record.cost for record in ended)
    by_class: dict[FailureClass, list[float]] = {}
    for record in ended:
        if record.failure is not None:
            by_class.setdefault(record.failure, []).append(record.wall_seconds)
    return Totals(
        runs=len({record.run_key for record in ledger}),
        attempts=len(ended),
        running=len(ledger) - len(ended),
        succeeded=succeeded,
        success_rate=succeeded / len(ended) if ended else None,
        goodput=seconds.productive / _total(seconds) if _total(seconds) else None,
        cost=cost,
        dollars_per_million_vectors=cost / vectors * 1e6 if vectors else None,
        seconds=seconds,
        attempts_by_class={failure: len(walls) for failure, walls in by_class.items()},
        seconds_by_class={failure: round(sum(walls), 3) for failure, walls in by_class.items()},
    )


def _total(seconds: Phases) -> float:
    return sum(getattr(seconds, phase) for phase in Phases.model_fields)


def _key(record: LedgerRecord) -> str:
    return f"{_attempt_prefix(record)}/ledger.json"


def _attempt_prefix(record: LedgerRecord) -> str:
    return f"{stage_prefix(record.run_key, record.stage)}/attempt-{record.attempt}"


def _close(
    store: Store,
    record: LedgerRecord,
    failure: FailureClass | None,
    message: str,
    phases: Phases | None,
    wall_seconds: float,
) -> LedgerRecord:
    phases = phases or Phases()
    queued = max(phases.queued, wall_seconds - _total(phases), 0.0)
    seconds = phases.model_copy(update={"queued": round(queued, 3)})
    closed = record.model_copy(
        update={
            "failure": failure,
            "message": message,
            "ended_at": now(),
            "seconds": seconds,
            "cost": _total(seconds) / 3600 * record.dollars_per_hour,
        }
    )
    store.write(_key(record), closed.to_json())
    return closed


def _done_phases(store: Store, record: LedgerRecord) -> Phases | None:
    """What the worker measured, if the stage's result is of this attempt."""
    try:
        result = read_result(store, record.run_key, record.stage)
    except UnusableResult:
        return None
    return result.phases if result is not None and result.attempt == record.attempt else None


def _failed_phases(store: Store, record: LedgerRecord) -> Phases | None:
    """What the first worker to fail had measured; all that seemed productive is lost."""
    failures = worker_failures(store, _attempt_prefix(record))
    if not failures:
        return None
    phases = failures[0].phases
    return phases.model_copy(update={"productive": 0.0, "lost": phases.lost + phases.productive})


def _read(store: Store, prefix: str) -> list[LedgerRecord]:
    found = []
    for key in store.list(prefix):
        if key.endswith("/ledger.json"):
            try:
                found.append(LedgerRecord.model_validate_json(store.read(key)))
            except ValidationError as error:
                raise StoreError(
                    f"{store.uri}/{key} is not a ledger record: {error.errors()[0]['msg']}; move the file away"
                ) from error
    return found
