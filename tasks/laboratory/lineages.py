"""The lineages of a past: the checkpoint that each run continues, and the releases of its model."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.runs import Release
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import ACTIVE, BRANCH, RELEASE
from tasks.monitoring.history import History
from tasks.monitoring.progress import SpanRow
from tasks.runs.branches import Active, Branch
from tasks.runs.experiments import read_all
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot


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
