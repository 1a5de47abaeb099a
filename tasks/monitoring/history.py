"""The past of a workspace: every run, the lineages with the releases of their models, the newest spans.

Pages and sums are made of it. Records that can't be read are left out and reported.
"""

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar

from pydantic import Field

from configs.schema.config import Config
from configs.schema.operations import FreshnessConfig
from tasks.contracts.evaluation import ForwardScore
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.runs import Release, RunState
from tasks.contracts.spans import first_day
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import ACTIVE, BRANCH, RELEASE
from tasks.foundation.errors import FailureClass, StageError
from tasks.foundation.records import Record
from tasks.monitoring.progress import CatalogueAge, SpanRow, catalogue_age, postponed, span_end, span_rows, survey
from tasks.monitoring.spending import Budget, budgets_seen
from tasks.runs import branches, releases
from tasks.runs.branches import Active, Branch
from tasks.runs.experiments import read_all
from tasks.runs.run import Run, error_of, read_runs
from tasks.runs.snapshot import Snapshot
from tasks.runs.sums import Sums, total

T = TypeVar("T")

PLANS = 10  # newest runs whose plans are compared with them
MOST_PUBLISHED = 60  # newest releases, so that years of hourly refreshes are not read
_WITH_SPEED = tuple(stage for stage in Stage if stage.traits.shows_speed)


class RunLine(Record):
    """A run in a list, also one that failed or is not over."""

    run_key: str
    span: str
    lineage: str
    state: RunState
    release: int | None = Field(description="number of its release; null: none")
    failure: FailureClass | None = Field(description="failure class of a run that failed or was cancelled")
    began_at: str
    ended_at: str | None


def line_of(run: Run) -> dict[str, Any]:
    """Return the fields of a `RunLine`."""
    line = {name: getattr(run, name) for name in RunLine.model_fields}
    return line | {"release": run.release.number if run.release is not None else None}


class History(NamedTuple):
    """All runs, by begin; their releases, by number; the newest spans; and unreadable records, in sentences."""

    runs: tuple[Run, ...]
    releases: tuple[Release, ...]  # with new models
    published: tuple[Release, ...]  # the newest releases by number, refreshes included
    newest_release: int | None  # its number, which may be that of a refresh
    current: Release | None
    catalogue: CatalogueAge | None  # catalogue of the current release
    spans: tuple[SpanRow, ...]
    problems: tuple[str, ...]
    config: Config | None  # settings of the last run
    budgets: tuple[Budget, ...]  # in these settings, of the last run and of this week
    tried: frozenset[str] = frozenset()  # keys of the runs of experiments

    @property
    def totals(self) -> Sums:
        """Over all runs."""
        return total(run.totals for run in self.runs)

    @property
    def plan_error(self) -> float | None:
        """The median absolute error of the last runs' planned seconds, as a share; None if none has a plan."""
        ended = [run for run in self.runs if run.ended_at is not None]
        return error_of(ended[-PLANS:])

    @property
    def forward(self) -> tuple[tuple[Run, ForwardScore], ...]:
        """Each release on the spans after it, oldest first, with the run that measured it; of several the newest."""
        judged = ((run, run.judgement.forward) for run in by_span(self.runs) if run.judgement is not None)
        found = {(score.release, score.span): (run, score) for run, score in judged if score is not None}
        return tuple(found.values())

    @property
    def last(self) -> Run | None:
        """The run that began last; an experiment counts only if it was released."""
        return _last(self.runs, self.tried)

    @property
    def targets(self) -> FreshnessConfig | None:
        """Freshness targets in the configuration of the last run."""
        return self.config.freshness if self.config is not None else None

    @property
    def target_hours(self) -> float | None:
        return self.targets.target_hours if self.targets else None


def read_history(snapshot: Snapshot) -> History:
    """Return the whole past. Raises StoreError: the workspace could not be read."""
    runs, problems = read_runs(snapshot, _WITH_SPEED), list[str]()
    tried = frozenset(each.run_key for each in _tried(lambda: read_all(snapshot.store), problems) or ())
    config = _tried(lambda: last_config(runs, tried), problems)
    current = _tried(lambda: snapshot.current, problems)
    return History(
        runs=tuple(runs),
        releases=tuple(sorted(snapshot.releases_of_runs.values(), key=lambda release: release.number)),
        published=_tried(lambda: _published(snapshot), problems) or (),
        newest_release=releases.newest(snapshot.store, current.number) if current is not None else None,
        current=current,
        catalogue=_tried(lambda: catalogue_age(snapshot, current), problems) if current is not None else None,
        spans=_tried(lambda: _spans(snapshot, config), problems) or (),
        config=config,
        budgets=_tried(lambda: budgets_seen(snapshot.store, config, runs, _last(runs, tried)), problems) or (),
        tried=tried,
        problems=(*snapshot.problems, *problems),
    )


def _last(runs: Sequence[Run], tried: Collection[str]) -> Run | None:
    return next((run for run in reversed(runs) if run.release or run.run_key not in tried), None)


def last_config(runs: Sequence[Run], tried: Collection[str]) -> Config | None:
    """Return the settings of the run that began last, for the lineage from which its branch starts; None without one.

    Every reader that names no configuration takes these: history, freshness, metrics and pages.

    Args:
        tried: keys of the runs of experiments, which count only if they were released.

    Raises:
        StoreError: the record of a branch is not readable.
    """
    counted = (run for run in runs if run.release or run.run_key not in tried)
    planned = [(run, run.plan.config) for run in counted if run.plan is not None]
    if not planned:
        return None
    run, config = planned[-1]
    return config.model_copy(update={"lineage": branches.root(run.snapshot.store, config.lineage)})


def age_seconds(release: Release | None, at: dt.datetime) -> float | None:
    """Return the age of the newest data in a release; None without a release."""
    return (at - span_end(release.span.name)).total_seconds() if release is not None else None


def by_span(runs: Iterable[Run]) -> list[Run]:
    """Return the runs by span and begin, oldest first. Runs whose span is not known are left out."""
    return sorted((run for run in runs if run.span), key=lambda run: (first_day(run.span), run.began_at))


def _published(snapshot: Snapshot) -> tuple[Release, ...]:
    newest = releases.numbers(snapshot.store)[-MOST_PUBLISHED:]
    return tuple(snapshot.read_all([RELEASE.key(number=number) for number in newest], Release))


def _spans(snapshot: Snapshot, config: Config | None) -> tuple[SpanRow, ...]:
    """Return the newest spans of the lineage of the last run, oldest first."""
    if config is None:
        return ()
    seen = survey(snapshot, config.lineage, due=None)
    return tuple(span_rows(snapshot, seen, missed=(), waits=postponed(snapshot.store, config, seen)))


def _tried(read: Callable[[], T], problems: list[str]) -> T | None:
    """Call `read`; if a record is not readable, add a sentence to `problems` and return None."""
    try:
        return read()
    except StageError as error:
        problems.append(str(error))
        return None


class Published(NamedTuple):
    """The releases of one run's model: its own, then refreshes.

    `ranges` has the first and the last number of each stretch. A later stretch came after a rollback to this model.
    """

    ranges: tuple[tuple[int, int], ...]
    serves: bool  # one of them is the current release
    after: int | None  # release that served when the first was made, if it is not the one before; else None

    @property
    def first(self) -> int:
        return self.ranges[0][0]

    @property
    def refreshes(self) -> int:
        return sum(last - first + 1 for first, last in self.ranges) - 1


class Step(NamedTuple):
    """A run in its lineage."""

    run: Run
    trained: bool  # it made a checkpoint
    parent: Run | None  # run whose checkpoint it continues
    begins: bool  # it continues no checkpoint
    published: Published | None


class Lineages(NamedTuple):
    """All runs by begin; the branch record of each lineage that is a branch; the lineages that runs continue now.

    `experiments` names the branches that are experiments.
    """

    steps: tuple[Step, ...]
    branches: Mapping[str, Branch]
    active: frozenset[str]
    experiments: Mapping[str, str]
    unrun: tuple[SpanRow, ...]  # the newest spans without a run, as skipped ones


def read_lineages(snapshot: Snapshot, history: History) -> Lineages:
    """Return the lineages of a past that was read from the same snapshot. Unreadable records are left out."""
    runs = [run for run in history.runs if run.plan is not None]
    names = {run.lineage for run in runs}
    snapshot.fetch(BRANCH.key(lineage=name) for name in names)
    branches = {
        name: branch for name in names if (branch := snapshot.read(BRANCH.key(lineage=name), Branch)) is not None
    }
    made = {checkpoint: run for run in runs if (checkpoint := _checkpoint_of(run)) is not None}
    published = _published_models(snapshot, history)
    steps = tuple(
        Step(
            run=run,
            trained=_checkpoint_of(run) is not None,
            parent=made.get(run.plan.parent.prefix) if run.plan is not None and run.plan.parent is not None else None,
            begins=run.plan is not None and run.plan.parent is None,
            published=published.get(run.run_key),
        )
        for run in runs
    )
    roots = names - branches.keys()
    continued = {name: snapshot.read(ACTIVE.key(lineage=name), Active) for name in roots}
    active = frozenset(found.branch if found is not None else name for name, found in continued.items())
    tried = {each.branch: each.name for each in read_all(snapshot.store)} if history.tried else {}
    return Lineages(steps, branches, active, tried, tuple(row for row in history.spans if row.run_key is None))


def _checkpoint_of(run: Run) -> str | None:
    outcome = run.outcome(Stage.train)
    return outcome.checkpoint.prefix if isinstance(outcome, TrainOutcome) else None


def _published_models(snapshot: Snapshot, history: History) -> dict[str, Published]:
    """Return the releases of each run, by its key.

    Numbers have no gaps, so the numbers between the releases of two runs are refreshes. Only the last of them is read:
    it is of another model only after a rollback, and then the first such one is searched for.
    """
    own = history.releases
    ends = [later.number - 1 for _, later in pairwise(own)] + [history.newest_release or 0]
    gaps = [(release, end) for release, end in zip(own, ends, strict=False) if end > release.number]
    snapshot.fetch(RELEASE.key(number=end) for _, end in gaps)
    ranges = {release.run_key: [(release.number, release.number)] for release in own}
    runs = {release.model.version: release.run_key for release in own}
    for release, end in gaps:
        model = _model(snapshot, end)
        other = runs.get(model, release.run_key)
        until = end if other == release.run_key else _last_of(snapshot, release, end)
        ranges[release.run_key][0] = (release.number, until)
        if until < end:
            ranges[other].append((until + 1, end))
    found: dict[str, Published] = {}
    serving = history.current.model.version if history.current is not None else None
    for release in own:
        found[release.run_key] = Published(
            ranges=tuple(ranges[release.run_key]),
            serves=release.model.version == serving,
            after=_after(release, own),
        )
    return found


def _model(snapshot: Snapshot, number: int) -> str:
    """Return the version of a release's model; empty if the release is not readable."""
    release = snapshot.read(RELEASE.key(number=number), Release)
    return release.model.version if release is not None else ""


def _last_of(snapshot: Snapshot, release: Release, end: int) -> int:
    """Return the last number before `end` whose release keeps the model of `release`, found by halving."""
    known, other = release.number, end
    while other - known > 1:
        middle = (known + other) // 2
        known, other = (middle, other) if _model(snapshot, middle) == release.model.version else (known, middle)
    return known


def _after(release: Release, own: Sequence[Release]) -> int | None:
    """Return the release that served when one was made, if another model had been released since."""
    if release.previous is None:
        return None
    between = any(release.previous < other.number < release.number for other in own)
    return release.previous if between else None
