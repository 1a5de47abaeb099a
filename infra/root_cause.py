"""The root cause of a failed attempt: the error of the worker that failed first."""

import signal
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import Field, ValidationError

from infra.store.base import Store
from tasks.contracts.jobs import JobSpec
from tasks.contracts.kinds import OfAttempt
from tasks.contracts.outcomes import WorkerFailure
from tasks.contracts.workspace import ENDING, ENDING_OF_ONE, FAILURE
from tasks.foundation.errors import ERRORS, FailureClass, StageError, from_exit_code, names_a_class
from tasks.foundation.neuron_errors import classify_log
from tasks.foundation.records import Record

LINES = 20
SIGNS = 5
CHARACTERS = 500  # kept of one line


class LogTail:
    """Keeps the last `LINES` lines, and the first `SIGNS` lines with an error code of the Neuron SDK."""

    def __init__(self) -> None:
        self._last: deque[str] = deque(maxlen=LINES)
        self._signs: list[tuple[int, str]] = []
        self._count = 0

    def append(self, line: str) -> None:
        self._last.append(line[:CHARACTERS])
        if len(self._signs) < SIGNS and classify_log(line) is not None:
            self._signs.append((self._count, line[:CHARACTERS]))
        self._count += 1

    @property
    def lines(self) -> tuple[str, ...]:
        """The kept lines in their order, each once."""
        first_of_last = self._count - len(self._last)
        return (*(line for number, line in self._signs if number < first_of_last), *self._last)


# Failures that may be the consequence of another worker's. CODE too, as not every library's error messages are known.
CONSEQUENCES = {FailureClass.HOST, FailureClass.HANG, FailureClass.CANCELLED, FailureClass.CODE}


class Ending(Record):
    """`ending.json` of an attempt that failed in a container, with the cause that its launcher found."""

    failure: FailureClass
    message: str
    node: int
    at: float
    leaves: bool = Field(
        default=False, description="true: the launcher then ends its machine, which AWS Batch reports as a lost host"
    )


class Cause(NamedTuple):
    """The worker that failed first, and the error to raise."""

    rank: int
    error: StageError


def worker_failures(store: Store, work: OfAttempt) -> list[WorkerFailure]:
    """Return the failure records that the workers of an attempt wrote, earliest first."""
    found = []
    for key in store.list(FAILURE.within(run=work.run_key, stage=work.stage, attempt=work.attempt)):
        if FAILURE.match(key):
            try:
                found.append(WorkerFailure.model_validate_json(store.read(key)))
            except ValidationError:
                continue  # truncated by a full disk; other records or the exit code still give the cause
    return sorted(found, key=lambda failure: failure.at)


def ending_key(spec: JobSpec, attempt: int, index: int | None) -> str:
    """Return the key of the ending of an attempt, or of one job of its array."""
    fields = {"run": spec.run_key, "stage": spec.stage, "attempt": attempt}
    return ENDING.key(**fields) if index is None else ENDING_OF_ONE.key(**fields, index=index)


def root_cause(store: Store, spec: JobSpec, codes: Mapping[int, int | None], tail: Sequence[str]) -> Cause:
    """Return the worker in `codes` that failed first, and the error to raise.

    Args:
        codes: exit code by worker; None: ended after another's failure.
        tail: the last log lines of all workers.

    Raises:
        ValueError: none of them failed.
    """
    records = [record for record in worker_failures(store, spec) if record.rank in codes]
    first = records[0] if records else None
    reported = {record.rank for record in records}
    silent = next(((rank, code) for rank, code in codes.items() if code and rank not in reported), None)
    if silent and (first is None or FailureClass(first.failure) in CONSEQUENCES):
        return Cause(silent[0], death_without_record(spec, *silent, tail))
    if first is None:
        raise ValueError(f"no worker of {spec.attempt_prefix} failed")
    where = f" (worker {first.rank} of {spec.workers})" if spec.workers > 1 else ""
    return Cause(first.rank, ERRORS[FailureClass(first.failure)](f"{first.message}{where}"))


def death_without_record(spec: JobSpec, rank: int, code: int, tail: Sequence[str]) -> StageError:
    """Return the error for a worker that died without a record; the others' errors are consequences of its death."""
    died = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
    failure, meaning = classify_death(code, tail)
    last_lines = "\n".join(tail) or "(none)"
    return ERRORS[failure](
        f"{spec.stage.value}: worker {rank} of {spec.workers} {died}{meaning}; last lines:\n{last_lines}"
    )


def classify_death(code: int, tail: Sequence[str]) -> tuple[FailureClass, str]:
    """Return the failure class of a process without an error record, and a cause from its log: empty, or `: ...`.

    The Neuron runtime aborts the process, so its error codes are only in the log. An exit code that our own process
    chose has priority over the log.
    """
    named = None if names_a_class(code) else classify_log("\n".join(tail))
    return (named[0], f": {named[1]}") if named else (from_exit_code(code), "")
