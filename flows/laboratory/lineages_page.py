"""The page of lineages: each run as a point under its span, a line from the checkpoint that it continues, its release.

A lineage is a row from left to right. A row is used again once its lineage has ended, so three years stay a few rows
high; the box scrolls sideways and begins at the newest span.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from flows.cli.serving.pages import HTML, Fresh
from flows.cli.serving.pages import Page as Answer
from flows.presentation import html
from flows.presentation.model import Cell, Page, Section, ended_as, state, table, unreadable
from flows.presentation.search import FURTHER, LINEAGES, TO_CHANGES, TO_HISTORY, TO_RELEASES, TO_SEARCH
from flows.presentation.wording import NONE, moment, number, shortened
from infra.store.base import Store
from tasks.contracts.runs import RunState
from tasks.contracts.spans import first_day
from tasks.contracts.workspace import LINEAGES_PAGE, REPORT
from tasks.foundation.nouns import plural
from tasks.laboratory.lineages import Lineages, Published, Step, read_lineages
from tasks.monitoring.history import History, read_history
from tasks.runs.snapshot import Snapshot

COLUMN, ROW = 96, 104  # pixels of a run, room for releases 25001 to 25168, and of a lineage
TOP = 30  # pixels above the first row, for the names of the spans
LINE, BADGE = 34, 76  # heights in a row: checkpoints, releases
NAMED_EACH = 10  # runs after which a lineage is named again, about a screen
LETTERS = 200  # shown of a reason
MOST_ROWS = 60  # in the table
TEMPLATE = Path(__file__).with_name("templates") / "lineages.html.jinja"


class Mark(NamedTuple):
    """A run: a checkpoint on the line of its lineage, or below it if it made none."""

    x: int
    y: int
    cell: Cell  # sign, mood, and the report to go to
    says: str  # shown when the pointer rests on it
    metric: str


class Badge(NamedTuple):
    """The releases of a run's model."""

    x: int
    y: int
    text: str
    serves: bool
    says: str
    cell: Cell


class Edge(NamedTuple):
    """A line; `path` is that of SVG. `kind` is a class of the style: `on`, `tried`, `made`, or `back`."""

    path: str
    kind: str
    says: str = ""


class Name(NamedTuple):
    """A text: of a span above all rows, of a lineage above its line, or of a span without a run."""

    x: int
    y: int
    text: str
    kind: str
    says: str = ""


class Picture(NamedTuple):
    """The drawing, in pixels."""

    width: int
    height: int
    edges: tuple[Edge, ...]
    marks: tuple[Mark, ...]
    badges: tuple[Badge, ...]
    names: tuple[Name, ...]
    alt: str


class _Place(NamedTuple):
    column: int
    row: int

    @property
    def x(self) -> int:
        return COLUMN // 2 + self.column * COLUMN

    @property
    def y(self) -> int:
        return TOP + self.row * ROW


def served(store: Store, fresh: Fresh) -> Callable[[str, str], Answer | None]:
    """Return what answers the requests for the page of a workspace, which is made at most every few seconds."""
    near = (TO_SEARCH, TO_CHANGES, TO_RELEASES, TO_HISTORY)

    def answer(path: str, query: str) -> Answer | None:
        if path not in FURTHER:
            return None
        return fresh(LINEAGES, lambda: Answer(HTML, lineages_html(store, near)))

    return answer


def lineages_html(store: Store, near: tuple[Cell, ...] = ()) -> bytes:
    """Return the lineages of a workspace as HTML; `near` are pages to go to. Raises StoreError: it was not readable."""
    snapshot = Snapshot(store)
    return lineages_page(store.uri, snapshot, read_history(snapshot), near)


def lineages_page(workspace: str, snapshot: Snapshot, history: History, near: tuple[Cell, ...] = ()) -> bytes:
    """Return the page of a past that was read from this snapshot."""
    found = read_lineages(snapshot, history)
    current = history.current
    rejected = sum(step.run.state == "Rejected" for step in found.steps)
    serves = f"Release {current.number} serves, of span {current.span.name}." if current else "Nothing is released yet."
    events = _events(found)
    page = Page(
        title="Lineages",
        workspace=workspace,
        key=LINEAGES_PAGE.key(),
        heading="Lineages",
        summary=f"{plural(len(found.steps), 'run')} in {plural(len(_spread(found)), 'lineage')}, {rejected} rejected. "
        f"{serves}",
        about=(
            "A row is a lineage, a column a span, the newest at the right. A point is a checkpoint and leads to "
            "the report of its run. The box below it has the numbers of its release and its refreshes. Runs that were "
            "rejected, or made no checkpoint, are below the line.",
        ),
        state=None,
        tiles=(),
        boxes=unreadable(tuple(dict.fromkeys((*history.problems, *snapshot.problems)))),
        sections=(events,) if events is not None else (),
        near=near,
    )
    return html.render(page, TEMPLATE, picture=picture(found, history) if found.steps else None)


def picture(found: Lineages, history: History) -> Picture:
    """Return the drawing of at least one run."""
    places = _places(found)
    step_of = {step.run.run_key: step for step in found.steps}
    edges, marks, badges = list[Edge](), list[Mark](), list[Badge]()
    by_release = {step.published.first: key for key, step in step_of.items() if step.published is not None}
    for key, step in step_of.items():
        at = places[key]
        on_line = at.y + _height(step)
        edges.extend(_from_parent(step, at, on_line, places))
        marks.append(_mark(step, at.x, on_line))
        if (published := step.published) is not None:
            edges.append(Edge(f"M{at.x} {on_line + 22}V{at.y + BADGE - 11}", "made"))
            badges.append(_badge(step, published, at, history))
            edges.extend(_back(published, at, places, by_release))
    rows = 1 + max(place.row for place in places.values())
    columns = _columns(found)
    width = COLUMN * sum(columns.values())
    return Picture(
        width=width,
        height=TOP + rows * ROW + 8,
        edges=tuple(edges),
        marks=tuple(marks),
        badges=tuple(badges),
        names=tuple(_names(found, places, columns)),
        alt=f"Graph of {plural(len(found.steps), 'run')} over {plural(len(columns), 'span')}; "
        "the tables of this page and of the history say the same.",
    )


def _spread(found: Lineages) -> dict[str, list[Step]]:
    """Return the runs of each lineage, both in the order of their begin."""
    spread: dict[str, list[Step]] = {}
    for step in found.steps:
        spread.setdefault(step.run.lineage, []).append(step)
    return spread


def _columns(found: Lineages) -> dict[str, int]:
    """Return the spans in order, each with the most runs that a lineage has over it."""
    counts: dict[str, dict[str, int]] = {row.span: {} for row in found.unrun}
    for step in found.steps:
        of = counts.setdefault(step.run.span, {})
        of[step.run.lineage] = of.get(step.run.lineage, 0) + 1
    return {
        span: max(counts[span].values(), default=1) for span in sorted(counts, key=lambda one: (first_day(one), one))
    }


def _places(found: Lineages) -> dict[str, _Place]:
    """Return the place of each run, by its key."""
    starts, start = dict[str, int](), 0
    for span, width in _columns(found).items():
        starts[span], start = start, start + width
    free: list[int] = []  # first column of each row that no lineage uses
    places: dict[str, _Place] = {}
    for name, steps in _spread(found).items():
        taken: dict[str, int] = {}
        columns = []
        for step in steps:
            columns.append(starts[step.run.span] + taken.get(step.run.span, 0))
            taken[step.run.span] = taken.get(step.run.span, 0) + 1
        row = next((row for row, until in enumerate(free) if until <= min(columns)), len(free))
        free[row : row + 1] = [max(max(columns) + 1, min(columns) + _letters(_title(name, found)))]
        for step, column in zip(steps, columns, strict=True):
            places[step.run.run_key] = _Place(column, row)
    return places


def _title(lineage: str, found: Lineages) -> str:
    return f"experiment {found.experiments[lineage]}" if lineage in found.experiments else lineage


def _letters(name: str) -> int:
    """Return the columns that the name of a lineage takes."""
    return -(-len(name) * 7 // COLUMN)


def _height(step: Step) -> int:
    """Return the height of a run in its row: below the line if nothing continues it, as after a rejection."""
    return LINE if step.trained and not step.run.rejected else BADGE


def _from_parent(step: Step, at: _Place, y: int, places: dict[str, _Place]) -> list[Edge]:
    kind = "on" if step.trained else "tried"
    if step.parent is None:
        return (
            []
            if step.begins
            else [Edge(f"M{at.x - COLUMN // 2} {y}H{at.x}", "tried", "continues an imported checkpoint")]
        )
    start = places[step.parent.run_key]
    from_y, bend = start.y + (BADGE if step.parent.rejected else LINE), COLUMN // 2
    if start.x >= at.x:  # trained again over an earlier span
        return [Edge(f"M{start.x} {from_y}C{start.x} {from_y + bend} {at.x} {from_y + bend} {at.x} {y}", kind)]
    turn = at.x - COLUMN
    return [Edge(f"M{start.x} {from_y}H{max(turn, start.x)}C{turn + bend} {from_y} {turn + bend} {y} {at.x} {y}", kind)]


def _back(published: Published, at: _Place, places: dict[str, _Place], by_release: dict[int, str]) -> list[Edge]:
    """Return a curve from a release to the earlier one that served when it was made, if other models lie between."""
    before = None if published.after is None else _holder(published.after, by_release)
    if before is None:
        return []
    to = places[before]
    y, other, low = at.y + BADGE + 12, to.y + BADGE + 12, max(at.y, to.y) + BADGE + 40
    says = (
        f"release {published.after} served when release {published.first} was made: the models between were rolled "
        "back, held, or left"
    )
    return [Edge(f"M{at.x} {y}Q{(at.x + to.x) // 2} {low} {to.x} {other}", "back", says)]


def _mark(step: Step, x: int, y: int) -> Mark:
    run = step.run
    metric, value = _metric(step)
    release = run.release.number if run.release is not None else None
    window = [span.name for span in run.plan.window] if run.plan is not None else []
    says = [
        f"{run.span}, lineage {run.lineage}: {ended_as(run.state, release, run.failure)}",
        f"trains {', '.join(window)}" if len(window) > 1 else "",
        f"{metric} {number(value)}" if value is not None else "",
        f"begun {moment(run.began_at)} UTC" if run.began_at else "",
        shortened(run.message, LETTERS),
    ]
    cell = state(run.state)._replace(key=REPORT.key(run=run.run_key))
    return Mark(x, y, cell, "\n".join(filter(None, says)), number(value) if value is not None else "")


def _metric(step: Step) -> tuple[str, float | None]:
    """Return the metric of the first gate, and its value."""
    judged = step.run.judgement
    name = next((verdict.metric for verdict in judged.verdicts), "") if judged is not None else ""
    return name, step.run.metrics.get(name)


def _badge(step: Step, published: Published, at: _Place, history: History) -> Badge:
    current, release = history.current, step.run.release
    says = f"release {published.first}"
    if published.refreshes:
        says += f", and {plural(published.refreshes, 'refresh', 'refreshes')}"
    if release is not None:
        says += f"\nmade {moment(release.created_at)} UTC, model {release.model.version}"
    if published.serves and current is not None:
        says += f"\nrelease {current.number} is the current one"
    text = ", ".join(f"{first}{NONE}{last}" if last > first else f"{first}" for first, last in published.ranges)
    return Badge(at.x, at.y + BADGE, text, published.serves, says, Cell("", key=REPORT.key(run=step.run.run_key)))


def _holder(release: int, by_release: dict[int, str]) -> str | None:
    """Return the key of the run with the newest release up to this number."""
    return next((by_release[first] for first in sorted(by_release, reverse=True) if first <= release), None)


def _names(found: Lineages, places: dict[str, _Place], columns: dict[str, int]) -> list[Name]:
    names, start, starts = list[Name](), 0, dict[str, int]()
    for span, width in columns.items():
        starts[span] = start
        names.append(Name(_Place(start, 0).x, 16, span, "span"))
        start += width
    for lineage, steps in _spread(found).items():
        branch = found.branches.get(lineage)
        base = f" from step {branch.base.step}" if branch is not None and branch.base is not None else ""
        says = f"a branch of {branch.of}{base}" if branch is not None else "begins at its first run"
        if lineage in found.active:
            says += "; new runs continue it"
        by_column = sorted((places[step.run.run_key] for step in steps), key=lambda place: place.column)
        title = _title(lineage, found)
        names += [Name(at.x - COLUMN // 2 + 4, at.y + 12, title, "lineage", says) for at in by_column[::NAMED_EACH]]
    active = [places[step.run.run_key].row for step in found.steps if step.run.lineage in found.active]
    for row in found.unrun:
        at = _Place(starts[row.span], active[-1] if active else 0)
        names.append(Name(at.x, at.y + BADGE, row.state.lower(), "unrun", row.message))
    return names


def _events(found: Lineages) -> Section | None:
    """Return a table of everything but plain releases, the newest first; None without any."""
    rows: list[Sequence[Cell | str]] = []
    known: set[str] = set()
    for step in found.steps:
        run, published = step.run, step.published
        said = [] if run.state in (RunState.RELEASED, RunState.RUNNING) else [run.message.partition("\n")[0]]
        branch = found.branches.get(run.lineage) if run.lineage not in known else None
        known.add(run.lineage)
        if branch is not None:
            base = f" at step {branch.base.step}" if branch.base is not None else ", from its beginning"
            said.append(f"{run.lineage} leaves {branch.of}{base}")
        if published is not None and published.after is not None:
            said.append(f"release {published.after} served when {published.first} was made, instead of a newer model")
        if said:
            ended = ended_as(run.state, published.first if published else None, run.failure)
            why = ". ".join(shortened(each, LETTERS) for each in said if each) or NONE
            rows.append(
                (Cell(run.span, key=REPORT.key(run=run.run_key)), state(run.state, ended), moment(run.began_at), why)
            )
    if not rows:
        return None
    made = table("The newest first", ("span", "state", "began", "~what happened"), rows[::-1][:MOST_ROWS])
    return Section("Rejections, failures and branches", id="events", tables=(made,))
