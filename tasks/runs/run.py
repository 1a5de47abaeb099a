"""A run as its records tell it: plan, attempts, results, state, cost, and its cost as it was planned.

Reads each record once, on first use. A refresh and a publication are runs with fewer stages. The plan of the cost
is recorded when the run first begins; nothing else is written here.
"""

import contextlib
import functools
import statistics
from collections.abc import Iterable, Sequence

from configs.schema.config import Config
from infra.store.base import Conflict, Store
from tasks.contracts.costs import Against, PlannedRun, RunCost
from tasks.contracts.evaluation import ByQueries, Role
from tasks.contracts.jobs import JobSpec, stage_prefix
from tasks.contracts.kinds import run_folder
from tasks.contracts.outcomes import InferOutcome, Outcome, StageResult
from tasks.contracts.runs import Release, RunPlan, RunState
from tasks.contracts.stages import Stage, Work
from tasks.contracts.workspace import PLAN, PLANNED, RESULT, VERDICTS
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError, FailureClass, StoreError
from tasks.runs.invocations import Invocation
from tasks.runs.ledger import LedgerRecord
from tasks.runs.results import Judgement
from tasks.runs.snapshot import Snapshot
from tasks.runs.sums import Sums, sums_of


def ledgers_in(keys: Iterable[str]) -> list[str]:
    """Return the keys of ledger records."""
    return [key for key in keys if key.endswith("/ledger.json")]  # 15 times as fast as LEDGER.match


def read_attempts(snapshot: Snapshot, keys: Iterable[str]) -> tuple[LedgerRecord, ...]:
    """Return the ledger records among these keys, in the order in which the attempts started."""
    return tuple(sorted(snapshot.read_all(ledgers_in(keys), LedgerRecord), key=lambda each: each.started_at))


class StageRun:
    """One stage of a run: its attempts, in the order in which they started, and its result once it is done."""

    def __init__(self, run: "Run", stage: Work) -> None:
        self._snapshot, self._run_key, self.stage = run.snapshot, run.run_key, stage

    @property
    def keys(self) -> Sequence[str]:
        """The files in its folder."""
        return self._snapshot.keys(self._run_key, self.stage.value)

    @property
    def done(self) -> bool:
        return RESULT.key(run=self._run_key, stage=self.stage) in self.keys

    @functools.cached_property
    def attempts(self) -> tuple[LedgerRecord, ...]:
        return read_attempts(self._snapshot, self.keys)

    @property
    def last_number(self) -> int:
        """The highest number of an attempt that left any file; 0 without one."""
        prefix = f"{stage_prefix(self._run_key, self.stage)}/attempt-"
        numbers = (key.removeprefix(prefix).partition("/")[0] for key in self.keys if key.startswith(prefix))
        return max((int(number) for number in numbers if number.isdecimal()), default=0)

    def last_spec(self) -> JobSpec | None:
        """Return the spec of the attempt that was started last; None if it is gone or not readable."""
        number = self.last_number
        while number:
            key = f"{stage_prefix(self._run_key, self.stage)}/attempt-{number}/spec.json"
            try:
                spec = self._snapshot.read(key, JobSpec)
            except StoreError:
                return None
            if spec is None or spec.submitted_as == number:
                return spec
            number = spec.submitted_as  # the later ones are retries by AWS Batch, whose specs are copies
        return None

    @functools.cached_property
    def result(self) -> StageResult | None:
        return self._snapshot.read(RESULT.key(run=self._run_key, stage=self.stage), StageResult)

    @property
    def outcome(self) -> Outcome | None:
        return self.result.outcome if self.result is not None else None

    @property
    def wall_seconds(self) -> float:
        return sum(attempt.wall_seconds for attempt in self.attempts)


class Run:
    """One run, finished or not. Records that don't exist yet, or can't be read, are None or empty."""

    def __init__(self, snapshot: Snapshot, run_key: str) -> None:
        self.snapshot = snapshot
        self.run_key = run_key
        self._stages: dict[Work, StageRun] = {}

    def stage(self, stage: Work) -> StageRun:
        return self._stages.setdefault(stage, StageRun(self, stage))

    def outcome(self, stage: Stage) -> Outcome | None:
        return self.stage(stage).outcome

    @functools.cached_property
    def plan(self) -> RunPlan | None:
        return self.snapshot.read(PLAN.key(run=self.run_key), RunPlan)

    @functools.cached_property
    def config(self) -> Config | None:
        """The settings of its plan; a side of a comparison has none, but its training has."""
        if self.plan is not None:
            return self.plan.config
        spec = self.stage(Stage.train).last_spec()
        return spec.config if spec is not None else None

    @functools.cached_property
    def invocations(self) -> tuple[Invocation, ...]:
        """Invocations by number."""
        found = self.snapshot.read_all(self.snapshot.keys(self.run_key, "invocations"), Invocation)
        return tuple(sorted(found, key=lambda each: each.number))

    @functools.cached_property
    def attempts(self) -> tuple[LedgerRecord, ...]:
        """Attempts of all stages, by start."""
        return read_attempts(self.snapshot, self.snapshot.keys(self.run_key))

    def since(self, moment: str) -> tuple[LedgerRecord, ...]:
        """Return the attempts that started at a time or later, as since the begin of an invocation."""
        return tuple(each for each in self.attempts if each.started_at >= moment)

    @functools.cached_property
    def results(self) -> dict[Stage, StageResult]:
        """Results of the stages that are done."""
        self.snapshot.fetch(RESULT.key(run=self.run_key, stage=stage) for stage in Stage)
        found = {stage: self.stage(stage).result for stage in Stage}
        return {stage: result for stage, result in found.items() if result is not None}

    @functools.cached_property
    def judgement(self) -> Judgement | None:
        return self.snapshot.read(VERDICTS.key(run=self.run_key), Judgement)

    @functools.cached_property
    def release(self) -> Release | None:
        return self.snapshot.release_of(self.run_key)

    @functools.cached_property
    def reached(self) -> RunState:
        """Released, Held, Rejected or Unfinished; independent of whether the run is active now."""
        if self.release is not None:
            return RunState.HELD if self.release.number in self.snapshot.held else RunState.RELEASED
        return RunState.REJECTED if self.rejected else RunState.UNFINISHED

    @property
    def rejected(self) -> bool:
        """True if the gates refuse its model; a release outlives stricter gates."""
        return self.release is None and self.judgement is not None and self.judgement.refused

    @property
    def unfinished(self) -> bool:
        """True if the run was neither released nor rejected; also if its release was late, and so never served."""
        return (self.release is None or self.release.number in self.snapshot.late) and not self.rejected

    @functools.cached_property
    def state(self) -> RunState:
        """The state of the run: the one word for it in every command and page."""
        if self.reached is not RunState.UNFINISHED:
            return self.reached
        last = self.invocations[-1] if self.invocations else None
        if last is not None and last.state not in (RunState.RELEASED, RunState.REJECTED):
            return self._running_or_lost if last.state is RunState.RUNNING else last.state
        if any(attempt.ended_at is None for attempt in self.attempts):
            return self._running_or_lost
        failure = self.attempts[-1].failure if self.attempts else None
        if failure is None:
            return RunState.UNFINISHED
        return RunState.CANCELLED if failure is FailureClass.CANCELLED else RunState.FAILED

    @property
    def _running_or_lost(self) -> RunState:
        return RunState.RUNNING if self.snapshot.is_worked_on(self.lineage) else RunState.LOST

    @property
    def lost_invocations(self) -> tuple[Invocation, ...]:
        """Invocations without a recorded end whose process is gone; all but the last one are, as they take turns."""
        *earlier, last = self.invocations or (None,)
        begun = [one for one in earlier if one is not None and one.ended_at is None]
        if last is not None and last.ended_at is None and not self.snapshot.is_worked_on(last.lineage):
            begun.append(last)
        return tuple(begun)

    @property
    def _stopped_by(self) -> Invocation | LedgerRecord | None:
        if self.state not in (RunState.FAILED, RunState.CANCELLED):
            return None
        last = self.invocations[-1] if self.invocations else None
        return last if last is not None and last.state is self.state else self.attempts[-1]

    @property
    def failure(self) -> FailureClass | None:
        """The class of a run that failed or was cancelled."""
        return self._stopped_by.failure if self._stopped_by is not None else None

    @property
    def message(self) -> str:
        """Reason of a failure, cancellation or rejection; else empty."""
        if self.state is RunState.REJECTED and self.judgement is not None:
            return self.judgement.why
        return self._stopped_by.message if self._stopped_by is not None else ""

    @functools.cached_property
    def span(self) -> str:
        """Name of the span; empty if no record can be read."""
        return self.plan.span.name if self.plan else next((each.span for each in self._known), "")

    @property
    def lineage(self) -> str:
        """Name of the lineage; empty if neither the settings nor an invocation can be read."""
        return self.config.lineage if self.config else next((each.lineage for each in self.invocations), "")

    @property
    def _known(self) -> tuple[Invocation | LedgerRecord, ...]:
        return (*self.invocations, *self.attempts)

    @functools.cached_property
    def began_at(self) -> str:
        """Begin of the run, ISO 8601 in UTC; empty if it has not begun."""
        return min((each.began_at for each in self.invocations), default="") or min(
            (each.started_at for each in self.attempts), default=""
        )

    @property
    def ended_at(self) -> str | None:
        """End of the run; None while it runs, or if no end is recorded."""
        if self.state in (RunState.RUNNING, RunState.LOST):
            return None
        return max((each.ended_at for each in self._known if each.ended_at is not None), default=None)

    @property
    def succeeded(self) -> bool | None:
        """True if the run ended with a result, even a refused model; None if it has not ended, or was cancelled."""
        if self.state in (RunState.RELEASED, RunState.HELD, RunState.REJECTED):
            return True
        if self.state is RunState.UNFINISHED:  # as a backfill may request
            return True if self.invocations else None
        return False if self.state in (RunState.FAILED, RunState.LOST) else None

    @property
    def cached(self) -> tuple[Stage, ...]:
        """The stages that were done before its last invocation began."""
        ran = {each.stage for each in self.since(self.invocations[-1].began_at)} if self.invocations else set[Work]()
        return tuple(stage for stage in Stage if stage not in ran and self.stage(stage).done)

    @property
    def vectors(self) -> int | None:
        outcome = self.outcome(Stage.infer)
        return outcome.vectors if isinstance(outcome, InferOutcome) else None

    @property
    def metrics(self) -> dict[str, float]:
        return self.judgement.outcome.challenger if self.judgement else {}

    @property
    def by_queries(self) -> ByQueries | None:
        """The challenger's metrics on unseen and on seen queries; None before the evaluation."""
        return self.judgement.outcome.by_queries.get(Role.challenger) if self.judgement else None

    @functools.cached_property
    def totals(self) -> Sums:
        made, ended = self.outcome(Stage.infer), self.succeeded
        sums = sums_of(self.attempts, made.vectors_made if isinstance(made, InferOutcome) else 0)
        over = {"runs_over": int(ended is not None), "runs_succeeded": int(bool(ended))}
        # The last stage may turn out to be done without another attempt, when only its result could not be read.
        return sums.model_copy(update=over | ({"unrecovered": 0} if ended else {}))

    @functools.cached_property
    def wall_seconds(self) -> float:
        return sum(attempt.wall_seconds for attempt in self.attempts)


def read_runs(snapshot: Snapshot, stages: Sequence[Stage]) -> list[Run]:
    """Return all runs by begin, with their records and the results of these stages; others are read when asked for."""
    # A folder without a plan is a side of a comparison.
    planned = {run_key: keys for run_key, keys in snapshot.runs.items() if PLAN.key(run=run_key) in keys}
    snapshot.fetch(key for run_key, keys in planned.items() for key in _records(run_key, keys, stages))
    snapshot.fetch_releases(planned)
    found = [_read_now(Run(snapshot, run_key), stages) for run_key in planned]
    return sorted(found, key=lambda run: (run.began_at, run.run_key))


def read_run(snapshot: Snapshot, run_key: str) -> Run:
    """Return a run with all of its records.

    Raises:
        ConfigError: there is no such run.
        StoreError: the workspace could not be read.
    """
    keys = snapshot.keys(run_key)
    if PLAN.key(run=run_key) not in keys:
        raise ConfigError(f"{snapshot.store.uri} holds no run {run_key}; list the runs with: millrace history")
    snapshot.fetch(_records(run_key, keys, tuple(Stage)))
    snapshot.fetch_releases([run_key])
    return _read_now(Run(snapshot, run_key), tuple(Stage))


def _read_now(run: Run, stages: Sequence[Stage]) -> Run:
    """Read the records of a run, so that the snapshot knows which of them can't be read."""
    _ = run.plan, run.invocations, run.attempts, run.judgement, run.release
    for stage in stages:
        _ = run.stage(stage).result
    return run


def _records(run_key: str, keys: Iterable[str], stages: Sequence[Stage]) -> list[str]:
    """Return the keys of a run's records, with the results of these stages."""
    results = (RESULT.key(run=run_key, stage=stage) for stage in stages)
    singles = {PLAN.key(run=run_key), VERDICTS.key(run=run_key), *results}
    invocations = f"{run_folder(run_key)}/invocations/"
    return [*ledgers_in(keys), *(key for key in keys if key in singles or key.startswith(invocations))]


WHOLE = "all"  # name of the sums


def record_plan(store: Store, run_key: str, cost: RunCost) -> None:
    """Record the expected cost of a run, unless an earlier invocation has. Raises StoreError: not written."""
    planned = PlannedRun(run_key=run_key, at=now(), cost=cost)
    with contextlib.suppress(Conflict):  # the first plan knew the least, and is the one to judge
        store.create(PLANNED.key(run=run_key), planned.to_json())


def planned_of(run: Run) -> PlannedRun | None:
    """Return the recorded plan of a run; None without one."""
    return run.snapshot.read(PLANNED.key(run=run.run_key), PlannedRun)


def against(run: Run) -> tuple[Against, ...]:
    """Return each stage's planned and actual figures, with their sums last; empty without a plan.

    Actual figures are from the attempt that succeeded, since a plan assumes no failures. The sums are over the
    stages that are done.
    """
    planned = planned_of(run)
    if planned is None:
        return ()
    found = []
    for one in planned.cost.stages:
        done = [each for each in run.attempts if each.stage is one.stage and each.ended_at and each.failure is None]
        found.append(
            Against(
                name=Stage(one.stage).value,
                planned_seconds=one.seconds,
                actual_seconds=round(done[-1].wall_seconds, 3) if done else None,
                planned_dollars=one.dollars,
                actual_dollars=done[-1].cost if done else None,
            )
        )
    both = [each for each in found if each.actual_seconds is not None]
    return (*found, _sums(both)) if both else tuple(found)


def error_of(runs: Iterable[Run]) -> float | None:
    """Return the median absolute error of the plans' seconds, as a share; None if no run has a plan with a figure."""
    errors = [abs(whole[-1].error) for run in runs if (whole := against(run)) and whole[-1].error is not None]
    return statistics.median(errors) if errors else None


def _sums(each: list[Against]) -> Against:
    def add(name: str) -> float | None:
        values = [getattr(one, name) for one in each]
        return None if None in values else sum(values)

    names = ("planned_seconds", "actual_seconds", "planned_dollars", "actual_dollars")
    return Against(name=WHOLE, **{name: add(name) for name in names})
