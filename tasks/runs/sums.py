"""Attempts added up: of a stage, a run, a week, a refresh, or of everything. One record for each sum, and sums add.

Only numbers that add are stored; ratios are computed from them.
"""

import datetime as dt
from collections.abc import Callable, Iterable
from typing import Any

from pydantic import Field, computed_field, model_validator

from configs.prices import cost_of, merged
from configs.schema.operations import Charge
from tasks.contracts.outcomes import Phases
from tasks.contracts.stages import Chore, Stage, Work
from tasks.foundation.errors import FailureClass
from tasks.foundation.records import Record
from tasks.runs.ledger import LedgerRecord

_STAGES: tuple[Work, ...] = (*Stage, *Chore)


class Sums(Record):
    """Sums over attempts that ended. A ratio is null while there is nothing to divide by."""

    runs: int = Field(default=0, description="runs, refreshes and publications with an attempt")
    runs_over: int = Field(default=0, description="runs that ended and were not cancelled")
    runs_succeeded: int = Field(default=0, description="ended runs with a result; a rejection is a result")
    attempts: int = Field(default=0, description="attempts that ended")
    running: int = Field(default=0, description="attempts without an end on record")
    succeeded: int = 0
    seconds: Phases = Field(default=Phases(), description="seconds by phase")
    charges: tuple[Charge, ...] = Field(
        default=(), description="machine-seconds by instance and price, which the cost adds up"
    )
    repriced_charges: tuple[Charge, ...] = Field(default=(), description="the charges at the prices of --prices")
    attempts_by_class: dict[FailureClass, int] = Field(default={}, description="attempts that failed, by failure class")
    seconds_by_class: dict[FailureClass, float] = Field(default={}, description="their wall seconds")
    recoveries: int = Field(
        default=0,
        description="outages that are over: from an attempt that fails uncancelled until the same or a later stage "
        "does work that is kept",
    )
    recovery_seconds: float = Field(default=0.0, description="seconds of these outages, waiting for people included")
    unrecovered: int = Field(default=0, description="outages that are not over")
    vectors: int = Field(default=0, description="vectors that were computed, not taken over")

    @model_validator(mode="before")
    @classmethod
    def _without_ratios(cls, printed: Any) -> Any:
        """The JSON of a command has them; they are computed anew."""
        if isinstance(printed, dict):
            return {key: value for key, value in printed.items() if key not in cls.model_computed_fields}
        return printed

    @computed_field(description="share of the runs that are over")
    @property
    def run_success_rate(self) -> float | None:
        return self.runs_succeeded / self.runs_over if self.runs_over else None

    @computed_field(description="share of attempts that succeeded")
    @property
    def success_rate(self) -> float | None:
        return self.succeeded / self.attempts if self.attempts else None

    @computed_field(description="productive seconds as a share of the seconds that machines were held (all but queued)")
    @property
    def goodput(self) -> float | None:
        return self.seconds.productive / self.seconds.paid if self.seconds.paid else None

    @computed_field(description="mean length of the outages that are over, in seconds")
    @property
    def mean_seconds_to_recover(self) -> float | None:
        return round(self.recovery_seconds / self.recoveries, 3) if self.recoveries else None

    @computed_field(description="cost in dollars; null: no attempt, or the price of an attempt's machines is not known")
    @property
    def cost(self) -> float | None:
        return cost_of(self.charges) if self.attempts else None

    @computed_field(description="cost at the prices of --prices; null: not asked for, or a machine has no price there")
    @property
    def repriced(self) -> float | None:
        return cost_of(self.repriced_charges) if self.repriced_charges else None

    @computed_field(description="cost of a million vectors in dollars; null: no vectors yet")
    @property
    def dollars_per_million_vectors(self) -> float | None:
        cost = self.cost
        return cost / self.vectors * 1e6 if self.vectors and cost is not None else None


def sums_of(attempts: Iterable[LedgerRecord], vectors: int = 0) -> Sums:
    """Return the sums over attempts, of any runs; `vectors` is the number of vectors made for that money."""
    attempts = list(attempts)
    ended = [record for record in attempts if record.ended_at is not None]
    took, left = _outages(attempts)
    failed: dict[FailureClass, list[float]] = {}
    for record in ended:
        if record.failure is not None:
            failed.setdefault(record.failure, []).append(record.wall_seconds)
    return Sums(
        runs=len({record.run_key for record in attempts}),
        attempts=len(ended),
        running=len(attempts) - len(ended),
        succeeded=sum(record.failure is None for record in ended),
        seconds=_added(record.seconds for record in ended),
        charges=merged(record.charge for record in ended),
        attempts_by_class={failure: len(walls) for failure, walls in failed.items()},
        seconds_by_class={failure: round(sum(walls), 3) for failure, walls in failed.items()},
        recoveries=len(took),
        recovery_seconds=round(sum(took), 3),
        unrecovered=left,
        vectors=vectors,
    )


def total(each: Iterable[Sums]) -> Sums:
    """Return the sum of sums over different runs."""
    each = list(each)

    def plus(value: Callable[[Sums], int]) -> int:
        return sum(map(value, each))

    classes = dict.fromkeys(failure for one in each for failure in one.attempts_by_class)
    return Sums(
        runs=plus(lambda one: one.runs),
        runs_over=plus(lambda one: one.runs_over),
        runs_succeeded=plus(lambda one: one.runs_succeeded),
        attempts=plus(lambda one: one.attempts),
        running=plus(lambda one: one.running),
        succeeded=plus(lambda one: one.succeeded),
        seconds=_added(one.seconds for one in each),
        charges=merged(charge for one in each for charge in one.charges),
        repriced_charges=merged(charge for one in each for charge in one.repriced_charges),
        attempts_by_class={name: sum(one.attempts_by_class.get(name, 0) for one in each) for name in classes},
        seconds_by_class={name: round(sum(one.seconds_by_class.get(name, 0) for one in each), 3) for name in classes},
        recoveries=plus(lambda one: one.recoveries),
        recovery_seconds=round(sum(one.recovery_seconds for one in each), 3),
        unrecovered=plus(lambda one: one.unrecovered),
        vectors=plus(lambda one: one.vectors),
    )


def _added(each: Iterable[Phases]) -> Phases:
    each = list(each)
    return Phases(**{phase: round(sum(getattr(one, phase) for one in each), 3) for phase in Phases.model_fields})


def _outages(attempts: Iterable[LedgerRecord]) -> tuple[list[float], int]:
    """Return the seconds of each finished outage, and the number of runs with an open one.

    Failures that follow each other without work in between are one outage. Work of an earlier stage than the one that
    failed first does not end it.
    """
    down: dict[str, tuple[dt.datetime, int]] = {}  # run -> end of the first failure, and place of its stage
    took = []
    for record in sorted(attempts, key=lambda record: (record.started_at, record.attempt)):
        run, place = record.run_key, _STAGES.index(record.stage)
        done = record.ended_at is not None and record.failure is None
        if run in down and place >= down[run][1] and (done or record.seconds.productive):
            since, _ = down.pop(run)
            took.append(max(0.0, (_works_since(record) - since).total_seconds()))
        if record.ended_at and record.failure not in (None, FailureClass.CANCELLED) and run not in down:
            down[run] = (dt.datetime.fromisoformat(record.ended_at), place)
    return took, len(down)


def _works_since(record: LedgerRecord) -> dt.datetime:
    """Return the begin of productive work in an attempt, as if all compiling came first."""
    seconds = record.seconds
    before = seconds.queued + seconds.booting + seconds.compiling + seconds.restoring
    return dt.datetime.fromisoformat(record.started_at) + dt.timedelta(seconds=before)
