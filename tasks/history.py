"""The past of a workspace in one sweep: every run with its attempts, results, verdict and release; for pages and sums.

It reads what is there and leaves out what no reader can make sense of, telling so. What one run left in full is
read_run's; nothing is decided here.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeVar

from pydantic import Field, ValidationError

from infra.store import Store
from tasks import branches, gates, releases
from tasks.contracts import InferOutcome, Outcome, Release, RunPlan, Stage, StageResult
from tasks.errors import ConfigError, FailureClass, StageError, StoreError
from tasks.invocations import Invocation
from tasks.ledger import LedgerRecord, Totals, totals
from tasks.records import Record
from tasks.results import Judgement, judgement_key, result_key
from tasks.spans import first_day
from tasks.standing import SpanRow, fetch, span_end, span_rows, survey

RunState = Literal["Released", "Rejected", "Unfinished", "Failed", "Cancelled", "Running"]

IN_A_SWEEP = (Stage.warmup, Stage.train, Stage.infer)  # the stages whose results tell speeds

R = TypeVar("R", bound=Record)

_RELEASE = re.compile(r"releases/\d+\.json")


class PastRun(Record):
    """One run as its files tell it, finished or not."""

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
    def began_at(self) -> str:
        """ISO 8601 in UTC; empty where nothing was begun."""
        return min((one.began_at for one in self.invocations), default="") or min(
            (one.started_at for one in self.attempts), default=""
        )

    @property
    def ended_at(self) -> str | None:
        """Null while it goes on, or where no end is on record."""
        if self.state == "Running":
            return None
        ends = [one.ended_at for one in (*self.invocations, *self.attempts) if one.ended_at is not None]
        return max(ends, default=None)

    @property
    def succeeded(self) -> bool | None:
        """Whether it came to a result, of which a refused model is one; None: not over, or somebody stopped it."""
        if self.state in ("Released", "Rejected"):
            return True
        if self.state == "Unfinished":  # as a backfill may ask
            return True if self.invocations else None
        return False if self.state == "Failed" else None

    @property
    def metrics(self) -> dict[str, float]:
        return self.judged.outcome.challenger if self.judged else {}

    @property
    def totals(self) -> Totals:
        return totals(self.attempts, 0)

    @property
    def wall_seconds(self) -> float:
        return sum(one.wall_seconds for one in self.attempts)

    def outcome(self, stage: Stage) -> Outcome | None:
        result = self.results.get(stage)
        return result.outcome if result is not None else None


class History(NamedTuple):
    """All runs, by begin; all releases, by number; the newest spans; and what could not be read, in sentences."""

    runs: tuple[PastRun, ...]
    releases: tuple[Release, ...]
    current: Release | None
    spans: tuple[SpanRow, ...]
    problems: tuple[str, ...]

    @property
    def totals(self) -> Totals:
        """Over all attempts of all runs."""
        return totals([one for run in self.runs for one in run.attempts], self.vectors)

    @property
    def vectors(self) -> int:
        """That all runs made."""
        outcomes = (run.outcome(Stage.infer) for run in self.runs)
        return sum(outcome.vectors for outcome in outcomes if isinstance(outcome, InferOutcome))

    @property
    def judged_runs(self) -> tuple[int, int]:
        """How many runs came to a result, out of how many that were not stopped by somebody and are over."""
        told = [run.succeeded for run in self.runs if run.succeeded is not None]
        return sum(told), len(told)

    @property
    def last(self) -> PastRun | None:
        return self.runs[-1] if self.runs else None

    @property
    def target_hours(self) -> float | None:
        """The promise of the last run's configuration."""
        plans = [run.plan for run in self.runs if run.plan is not None]
        return plans[-1].config.freshness.target_hours if plans else None


class Sources(NamedTuple):
    """The keys of a workspace's runs and what they hold; `problems` grows while they are read."""

    store: Store
    held: dict[str, bytes]
    problems: list[str]

    def read(self, key: str, kind: type[R]) -> R | None:
        """The record under a key; None where there is none, or none that this version can read."""
        if key not in self.held:
            return None
        try:
            return kind.model_validate_json(self.held[key])
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(str(part) for part in problem["loc"])
            self.problems.append(f"{self.store.uri}/{key} is not readable: {where or 'file'}: {problem['msg']}")
            return None


def read_history(store: Store) -> History:
    """The whole past.

    Raises:
        StoreError: the workspace could not be read.
    """
    keys = store.list("runs")
    by_run: dict[str, list[str]] = {}
    for key in keys:
        by_run.setdefault(key.split("/")[1], []).append(key)
    ours = {run: held for run, held in by_run.items() if f"runs/{run}/plan.json" in held}  # else a side of a comparison
    wanted = [key for run, held in ours.items() for key in held if _is_record(key, run, IN_A_SWEEP)]
    problems: list[str] = []
    made, current = _releases(store, problems)
    sources = Sources(store, fetch(store, wanted), problems)
    of_run = {one.run_key: one for one in made}
    unsorted = [_run(sources, run, held, IN_A_SWEEP, of_run.get(run)) for run, held in ours.items()]
    runs = sorted(unsorted, key=lambda run: (run.began_at, run.run_key))
    return History(
        runs=tuple(runs),
        releases=tuple(made),
        current=current,
        spans=_spans(store, runs, problems),
        problems=tuple(problems),
    )


def read_run(store: Store, run_key: str) -> tuple[PastRun, tuple[str, ...]]:
    """One run in full, and what of it could not be read, in sentences.

    Raises:
        ConfigError: there is no such run.
        StoreError: the workspace could not be read.
    """
    held = store.list(f"runs/{run_key}")
    if f"runs/{run_key}/plan.json" not in held:
        raise ConfigError(f"{store.uri} holds no run {run_key}")
    problems: list[str] = []
    made, _ = _releases(store, problems)
    sources = Sources(store, fetch(store, [key for key in held if _is_record(key, run_key, tuple(Stage))]), problems)
    release = next((one for one in made if one.run_key == run_key), None)
    return _run(sources, run_key, held, tuple(Stage), release), tuple(problems)


def age_seconds(release: Release | None, at: dt.datetime) -> float | None:
    """How old the newest data in a release is; None without a release."""
    return (at - span_end(release.span.name)).total_seconds() if release is not None else None


def by_span(runs: Iterable[PastRun]) -> list[PastRun]:
    """Oldest span first; of one span, oldest run first. Runs whose span is not known are left out."""
    return sorted((run for run in runs if run.span), key=lambda run: (first_day(run.span), run.began_at))


def _run(
    sources: Sources, run_key: str, held: Sequence[str], stages: Sequence[Stage], release: Release | None
) -> PastRun:
    plan = sources.read(f"runs/{run_key}/plan.json", RunPlan)
    attempts = [sources.read(key, LedgerRecord) for key in held if key.endswith("/ledger.json")]
    told = [sources.read(key, Invocation) for key in held if key.split("/")[2:3] == ["invocations"]]
    ledger = sorted((one for one in attempts if one is not None), key=lambda one: one.started_at)
    invocations = sorted((one for one in told if one is not None), key=lambda one: one.number)
    results = {stage: sources.read(result_key(run_key, stage), StageResult) for stage in stages}
    judged = sources.read(judgement_key(run_key), Judgement)
    state, failure, message = _ended(release, judged, invocations, ledger)
    known = (*invocations, *ledger)
    return PastRun(
        run_key=run_key,
        span=plan.span.name if plan else next((one.span for one in known), ""),
        lineage=plan.config.lineage if plan else next((one.lineage for one in invocations), ""),
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


def _ended(
    release: Release | None, judged: Judgement | None, invocations: list[Invocation], attempts: list[LedgerRecord]
) -> tuple[RunState, FailureClass | None, str]:
    """How a run stands, and why where it failed."""
    if release is not None:
        return "Released", None, ""
    if judged is not None and gates.refused(judged.verdicts):
        return "Rejected", None, " ".join(verdict.sentence for verdict in judged.verdicts if gates.refused([verdict]))
    if invocations and invocations[-1].state in ("Running", "Unfinished", "Failed", "Cancelled"):
        last = invocations[-1]
        return last.state, last.failure, last.message
    if any(one.ended_at is None for one in attempts):
        return "Running", None, ""
    if attempts and (failure := attempts[-1].failure) is not None:  # from before there were records of invocations
        return ("Cancelled" if failure is FailureClass.CANCELLED else "Failed"), failure, attempts[-1].message
    return "Unfinished", None, ""


def _spans(store: Store, runs: Sequence[PastRun], problems: list[str]) -> tuple[SpanRow, ...]:
    """How far each of the newest spans has come in the lineage of the last run; oldest first."""
    plans = [run.plan for run in runs if run.plan is not None]
    if not plans:
        return ()
    try:
        lineage = branches.root(store, plans[-1].config.lineage)
        return tuple(span_rows(store, survey(store, lineage, due=None), missed=(), working=True))
    except StageError as error:
        problems.append(str(error))
        return ()


def _releases(store: Store, problems: list[str]) -> tuple[list[Release], Release | None]:
    """All that can be read, by number, and the one that serves."""
    keys = [key for key in store.list("releases") if _RELEASE.fullmatch(key)]
    sources = Sources(store, fetch(store, keys), problems)
    made = [release for key in keys if (release := sources.read(key, Release)) is not None]
    try:
        current = releases.current(store)
    except StoreError as error:
        problems.append(str(error))
        current = None
    return sorted(made, key=lambda release: release.number), current


def _is_record(key: str, run_key: str, stages: Sequence[Stage]) -> bool:
    name = key.rpartition("/")[2]
    if name in ("plan.json", "ledger.json") or key.split("/")[2:3] == ["invocations"]:
        return name.endswith(".json")
    return key == judgement_key(run_key) or key in {result_key(run_key, stage) for stage in stages}
