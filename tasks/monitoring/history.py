"""The past of a workspace: every run, the releases, the newest spans.

Pages and sums are made of it. Records that can't be read are left out and reported.
"""

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from pydantic import Field

from configs.schema.config import Config
from configs.schema.operations import FreshnessConfig
from tasks.contracts.evaluation import ForwardScore
from tasks.contracts.runs import Release, RunState
from tasks.contracts.spans import first_day
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import RELEASE
from tasks.foundation.errors import FailureClass, StageError
from tasks.foundation.records import Record
from tasks.monitoring.progress import CatalogueAge, SpanRow, catalogue_age, postponed, span_end, span_rows, survey
from tasks.monitoring.spending import Budget, budgets_seen
from tasks.runs import branches, releases
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
