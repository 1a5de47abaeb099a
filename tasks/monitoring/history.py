"""The past of a workspace: every run with its attempts, results, verdict and release; for pages and sums.

Records that can't be read are left out and reported. `read_run` reads one run in full, `read_history` what sums need of
all runs.
"""

import datetime as dt
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import Field

from configs.schema.operations import FreshnessConfig
from infra.store.base import Store
from tasks.contracts.evaluation import ForwardScore
from tasks.contracts.kinds import run_folder
from tasks.contracts.outcomes import InferOutcome, Outcome
from tasks.contracts.results import StageResult
from tasks.contracts.runs import Release, RunPlan, RunState
from tasks.contracts.spans import first_day
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import INVOCATION, LEDGER, PLAN, RESULT, VERDICTS
from tasks.foundation.errors import ConfigError, FailureClass, StageError, StoreError
from tasks.foundation.records import Record
from tasks.monitoring.catalogue_age import CatalogueAge, catalogue_age
from tasks.monitoring.reader import Reader
from tasks.monitoring.span_progress import SpanRow, span_end, span_rows, survey
from tasks.runs import branches, releases
from tasks.runs.invocations import Invocation
from tasks.runs.ledger import LedgerRecord, Totals, totals
from tasks.runs.results import Judgement
from tasks.runs.run_state import run_state

_WITH_SPEED = tuple(stage for stage in Stage if stage.traits.shows_speed)


class RunFacts(Record):
    """What every list of runs says of each, also of one that failed or is not over."""

    run_key: str
    span: str
    lineage: str
    state: RunState = Field(description="Running: also a run whose process was killed")
    release: int | None
    failure: FailureClass | None = Field(description="the class of a run that failed or was cancelled")
    began_at: str
    ended_at: str | None


class PastRun(Record):
    """One run by its files, finished or not."""

    run_key: str
    span: str
    lineage: str = Field(description="empty: neither its plan nor an invocation can be read")
    state: RunState
    failure: FailureClass | None = Field(description="of a run that failed or was cancelled")
    message: str = Field(description="likewise")
    plan: RunPlan | None = Field(description="null: written by another version")
    invocations: tuple[Invocation, ...]
    attempts: tuple[LedgerRecord, ...] = Field(description="in the order in which they started")
    results: dict[Stage, StageResult]
    judged: Judgement | None
    release: Release | None

    @property
    def facts(self) -> RunFacts:
        """The run in short."""
        return RunFacts(
            run_key=self.run_key,
            span=self.span,
            lineage=self.lineage,
            state=self.state,
            release=self.release.number if self.release else None,
            failure=self.failure,
            began_at=self.began_at,
            ended_at=self.ended_at,
        )

    @property
    def began_at(self) -> str:
        """ISO 8601 in UTC; empty where nothing was begun."""
        return min((each.began_at for each in self.invocations), default="") or min(
            (each.started_at for each in self.attempts), default=""
        )

    @property
    def ended_at(self) -> str | None:
        """Null while it runs, or where no end is recorded."""
        if self.state is RunState.RUNNING:
            return None
        ends = [each.ended_at for each in (*self.invocations, *self.attempts) if each.ended_at is not None]
        return max(ends, default=None)

    @property
    def succeeded(self) -> bool | None:
        """Whether it ended with a result, as a refused model is; None: it has not ended, or was cancelled."""
        if self.state in (RunState.RELEASED, RunState.REJECTED):
            return True
        if self.state is RunState.UNFINISHED:  # as a backfill may request
            return True if self.invocations else None
        return False if self.state is RunState.FAILED else None

    @property
    def metrics(self) -> dict[str, float]:
        return self.judged.outcome.challenger if self.judged else {}

    @property
    def totals(self) -> Totals:
        return totals(self.attempts, 0)

    @property
    def wall_seconds(self) -> float:
        return sum(attempt.wall_seconds for attempt in self.attempts)

    def outcome(self, stage: Stage) -> Outcome | None:
        result = self.results.get(stage)
        return result.outcome if result is not None else None


class History(NamedTuple):
    """All runs, by begin; their releases, by number; the newest spans; and what could not be read, in sentences."""

    runs: tuple[PastRun, ...]
    releases: tuple[Release, ...]  # with new models; refreshes are not read
    newest_release: int | None  # its number, which may be that of a refresh
    current: Release | None
    catalogue: CatalogueAge | None  # of the current release
    spans: tuple[SpanRow, ...]
    problems: tuple[str, ...]

    @property
    def totals(self) -> Totals:
        """Over all attempts of all runs."""
        return totals([attempt for run in self.runs for attempt in run.attempts], self.vectors)

    @property
    def vectors(self) -> int:
        """The number of vectors that all runs made."""
        outcomes = (run.outcome(Stage.infer) for run in self.runs)
        return sum(outcome.vectors for outcome in outcomes if isinstance(outcome, InferOutcome))

    @property
    def judged_runs(self) -> tuple[int, int]:
        """The number of runs that ended with a result, and of those that ended and were not cancelled."""
        ended = [run.succeeded for run in self.runs if run.succeeded is not None]
        return sum(ended), len(ended)

    @property
    def forward(self) -> tuple[tuple[PastRun, ForwardScore], ...]:
        """Each release on the spans after it, oldest first, with the run that measured it; of several the newest."""
        judged = ((run, run.judged.forward) for run in by_span(self.runs) if run.judged is not None)
        found = {(score.release, score.span): (run, score) for run, score in judged if score is not None}
        return tuple(found.values())

    @property
    def last(self) -> PastRun | None:
        return self.runs[-1] if self.runs else None

    @property
    def targets(self) -> FreshnessConfig | None:
        """What the configuration of the last run promises."""
        plans = [run.plan for run in self.runs if run.plan is not None]
        return plans[-1].config.freshness if plans else None

    @property
    def target_hours(self) -> float | None:
        return self.targets.target_hours if self.targets else None


def read_history(reader: Reader) -> History:
    """Return the whole past. Raises StoreError: the workspace could not be read."""
    store = reader.store
    runs, made = read_runs(reader, _WITH_SPEED), reader.releases_of_runs.values()
    problems: list[str] = []
    current = _current(store, problems)
    spans = _spans(reader, runs, problems)
    return History(
        runs=tuple(runs),
        releases=tuple(sorted(made, key=lambda release: release.number)),
        newest_release=releases.newest(store, current.number) if current is not None else None,
        current=current,
        catalogue=_catalogue(store, current, problems),
        spans=spans,
        problems=(*reader.problems, *problems),
    )


def read_runs(reader: Reader, stages: Sequence[Stage]) -> list[PastRun]:
    """Return all runs by begin, with the results of these stages."""
    of_run = reader.releases_of_runs
    # A folder without a plan is a side of a comparison.
    planned = {run: keys for run, keys in reader.runs.items() if PLAN.key(run=run) in keys}
    reader.fetch(key for run, keys in planned.items() for key in keys if _is_record(key, run, stages))
    unsorted = [_run(reader, run, keys, stages, of_run.get(run)) for run, keys in planned.items()]
    return sorted(unsorted, key=lambda run: (run.began_at, run.run_key))


def read_run(store: Store, run_key: str) -> tuple[PastRun, tuple[str, ...]]:
    """Return all of one run, and a sentence for each record that could not be read.

    Raises:
        ConfigError: there is no such run.
        StoreError: the workspace could not be read.
    """
    keys = store.list(run_folder(run_key))
    if PLAN.key(run=run_key) not in keys:
        raise ConfigError(f"{store.uri} holds no run {run_key}; list the runs with: millrace history")
    reader = Reader(store)
    release = reader.read_releases([run_key]).get(run_key)
    reader.fetch(key for key in keys if _is_record(key, run_key, tuple(Stage)))
    return _run(reader, run_key, keys, tuple(Stage), release), tuple(reader.problems)


def age_seconds(release: Release | None, at: dt.datetime) -> float | None:
    """Return the age of the newest data in a release; None without a release."""
    return (at - span_end(release.span.name)).total_seconds() if release is not None else None


def by_span(runs: Iterable[PastRun]) -> list[PastRun]:
    """Return the runs by span and begin, oldest first. Runs whose span is not known are left out."""
    return sorted((run for run in runs if run.span), key=lambda run: (first_day(run.span), run.began_at))


def _run(
    reader: Reader, run_key: str, keys: Sequence[str], stages: Sequence[Stage], release: Release | None
) -> PastRun:
    plan = reader.read(PLAN.key(run=run_key), RunPlan)
    attempts = [reader.read(key, LedgerRecord) for key in keys if LEDGER.match(key)]
    ledger = sorted((each for each in attempts if each is not None), key=lambda each: each.started_at)
    recorded = [reader.read(key, Invocation) for key in keys if key.split("/")[2:3] == ["invocations"]]
    invocations = sorted((each for each in recorded if each is not None), key=lambda each: each.number)
    results = {stage: reader.read(RESULT.key(run=run_key, stage=stage), StageResult) for stage in stages}
    judged = reader.read(VERDICTS.key(run=run_key), Judgement)
    state = run_state(release is not None, judged, invocations[-1] if invocations else None, ledger)
    failure, message = _why(state, judged, invocations, ledger)
    known = (*invocations, *ledger)
    return PastRun(
        run_key=run_key,
        span=plan.span.name if plan else next((each.span for each in known), ""),
        lineage=plan.config.lineage if plan else next((each.lineage for each in invocations), ""),
        state=state,
        failure=failure,
        message=message,
        plan=plan,
        invocations=tuple(invocations),
        attempts=tuple(ledger),
        results={stage: result for stage, result in results.items() if result is not None},
        judged=judged,
        release=release,
    )


def _why(
    state: RunState, judged: Judgement | None, invocations: Sequence[Invocation], attempts: Sequence[LedgerRecord]
) -> tuple[FailureClass | None, str]:
    """Return the failure class and the message of a run that was rejected, failed or was cancelled."""
    if state is RunState.REJECTED and judged is not None:
        return None, judged.why
    if state in (RunState.FAILED, RunState.CANCELLED):
        last = invocations[-1] if invocations and invocations[-1].state is state else attempts[-1]
        return last.failure, last.message
    return None, ""


def _spans(reader: Reader, runs: Sequence[PastRun], problems: list[str]) -> tuple[SpanRow, ...]:
    """Return the newest spans of the lineage of the last run, oldest first."""
    plans = [run.plan for run in runs if run.plan is not None]
    if not plans:
        return ()
    try:
        lineage = branches.root(reader.store, plans[-1].config.lineage)
        return tuple(span_rows(reader, survey(reader, lineage, due=None), missed=(), working=True))
    except StageError as error:
        problems.append(str(error))
        return ()


def _current(store: Store, problems: list[str]) -> Release | None:
    try:
        return releases.current(store)
    except StoreError as error:
        problems.append(str(error))
        return None


def _catalogue(store: Store, current: Release | None, problems: list[str]) -> CatalogueAge | None:
    try:
        return catalogue_age(store, current) if current is not None else None
    except StoreError as error:
        problems.append(str(error))
        return None


def _is_record(key: str, run_key: str, stages: Sequence[Stage]) -> bool:
    if any(kind.match(key) for kind in (PLAN, LEDGER, INVOCATION)):
        return True
    return key == VERDICTS.key(run=run_key) or key in {RESULT.key(run=run_key, stage=stage) for stage in stages}
