"""Releases, refreshes included: which one serves, the model and the catalogue of each, and its publications.

A publication has its outcome and measurements at each search service, and the repair of its failures.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from configs.schema.stages import narrowing
from flows.presentation import html, queries
from flows.presentation.model import Cell, Command, Page, Section, Table, Tile, table, unreadable
from flows.presentation.search import CHANGES, TO_CHANGES, TO_HISTORY, TO_LINEAGES, TO_MAP, TO_SEARCH
from flows.presentation.wording import (
    BY_NARROW,
    NONE,
    OF_INDEX,
    ON_HOLDOUT,
    WITHOUT_INDEX,
    count,
    moment,
    number,
    plural,
    with_settings,
)
from tasks.contracts.evaluation import MAIN
from tasks.contracts.kinds import run_folder
from tasks.contracts.runs import Hold, Release
from tasks.contracts.workspace import MEASURED
from tasks.runs.served_targets import Publication

MOST_ROWS = 100  # the newest; `millrace releases` lists all


class Listed(NamedTuple):
    """The newest releases, the newest first, and the facts for their states."""

    releases: Sequence[Release]
    made: int  # releases of the workspace in all
    current: int | None
    pruned: Collection[int]  # numbers
    hold: Hold | None
    problems: Sequence[str]  # unreadable releases, in sentences


def published_as(refreshed: int | None) -> str:
    """Return the kind of a release, as in `refresh of 4`. `refreshed`: the release whose model it keeps, if any."""
    return f"refresh of {refreshed}" if refreshed is not None else "new model"


def releases_html(workspace: str, listed: Listed) -> bytes:
    """Return the page as HTML."""
    newest = listed.releases[0] if listed.releases else None
    serving = next((each for each in listed.releases if each.number == listed.current), None)
    refreshes = sum(each.refreshed is not None for each in listed.releases)
    shown = f"The newest {MOST_ROWS} are shown; millrace releases lists all." if listed.made > MOST_ROWS else ""
    summary = f"{plural(listed.made, 'release')}." if listed.made else "No release yet. Begin one: millrace run"
    tiles = (
        Tile("Serves", Cell(str(listed.current)), _since(serving)),
        Tile("New models", Cell(count(len(listed.releases) - refreshes)), "of the releases below"),
        Tile("Refreshes", Cell(count(refreshes)), "the same model, with new and changed items"),
    )
    page = Page(
        title="Releases",
        workspace=workspace,
        key="",
        heading="Releases",
        summary=f"{summary} {shown}".rstrip(),
        about=(listed.hold.sentence,) if listed.hold else (),
        state=None,
        tiles=tiles if newest is not None else (),
        boxes=unreadable(listed.problems),
        sections=(_section(listed),) if newest is not None else (),
        near=(TO_SEARCH, TO_CHANGES, *TO_MAP, TO_HISTORY, *TO_LINEAGES),
    )
    return html.render(page)


def _since(serving: Release | None) -> str:
    return f"span {serving.span.name}, {count(serving.vectors)} vectors" if serving else "an older release"


def _section(listed: Listed) -> Section:
    vectors = {each.number: each.vectors for each in listed.releases}
    let_pass = any(each.overrides for each in listed.releases)
    rows = [
        (
            Cell(str(each.number), link=f"{CHANGES}/{each.number}"),
            _state(each, listed),
            published_as(each.refreshed),
            Cell(each.span.name, link="" if each.refreshed else f"/{run_folder(each.run_key)}/report.html"),
            moment(each.created_at),
            each.model.version,
            *queries.cells(each.by_queries, MAIN),
            count(each.vectors),
            _difference(each, vectors),
            *(("; ".join(f"{one.name}: {one.reason}" for one in each.overrides) or NONE,) if let_pass else ()),
        )
        for each in listed.releases
    ]
    more = ("~let pass by",) if let_pass else ()
    columns = (">release", "state", "kind", "span", "made", "model", *queries.columns(MAIN), ">vectors", ">more", *more)
    links = "a number links to the changes by that release, a span to the report of its run"
    caption = f"Newest first; {links}; {MAIN} {ON_HOLDOUT}, which a refresh takes over from its model"
    return Section("All releases", id="releases", tables=(table(caption, columns, rows),))


def _state(release: Release, listed: Listed) -> Cell:
    if release.number == listed.current:
        return Cell("serves", "✓", "good")
    if release.number in listed.pruned:
        return Cell("pruned", "○", "quiet")
    if listed.current is not None and release.number > listed.current:
        return Cell("newer, not serving", "‖", "refused")
    return Cell("earlier", "○", "quiet")


def _difference(release: Release, vectors: Mapping[int, int]) -> str:
    """Return the number of vectors more than the release before it has, as +12; a dash if that is not listed."""
    before = vectors.get(release.previous or 0)
    return NONE if before is None else f"{release.vectors - before:+,}".replace("-", "\N{MINUS SIGN}")


def publications_section(of: Sequence[Publication], release: Release) -> tuple[Section, ...]:
    """Return the release that each target serves, and the measurements of this one; empty without targets."""
    if not of:
        return ()
    serving = sum(_serves(each, release) for each in of)
    what = f"{serving} of {plural(len(of), 'target')} {'serves' if serving == 1 else 'serve'} release {release.number}."
    rows = [(_named(each), _publication_state(each, release), *_serving(each)) for each in of]
    return (
        Section(
            "Publications",
            (what,),
            id="publications",
            tables=(table("", ("target", "publication", "serves", "found at"), rows), *_measured(of)),
            files=tuple((f"publication to {each.target.name}", _folder(each)) for each in of if each.attempts),
        ),
    )


def failed_publications(of: Sequence[Publication], workspace: str, release: Release) -> tuple[Section, ...]:
    """Return a box of the targets whose last publication failed, with the repair; empty if none failed."""
    failed = [each for each in of if each.failure is not None]
    if not failed:
        return ()
    does = "Repair what is named below, then publish the current release again; what a target has of it stays:"
    command = with_settings("millrace publish", workspace, release.run_key)
    return (
        Section(
            f"Release {release.number} did not reach {', '.join(each.target.name for each in failed)}",
            mood="bad",
            commands=(Command(does, tuple(command.splitlines())),),
            parts=tuple(_failure(each) for each in failed),
        ),
    )


def _failure(of: Publication) -> Section:
    serves = f"still serves release {of.now.release}" if of.now is not None else "serves no release yet"
    tried = plural(len(of.attempts), "attempt")
    return Section(
        f"{_named(of)} failed with {of.failure}", (f"It {serves}, after {tried}.",), quote=of.attempts[-1].message
    )


def _measured(of: Sequence[Publication]) -> tuple[Table, ...]:
    rows = [
        (
            _named(each),
            number(each.measured.recall),
            f"{each.measured.query_ms:.1f}",
            count(each.measured.queries),
            count(each.measured.vectors),
            Cell(each.measured.table, code=True),
            Cell(each.measured.index, code=True) if each.measured.index is not None else NONE,
        )
        for each in of
        if each.measured is not None
    ]
    caption = f"recall@10 {OF_INDEX}, or {WITHOUT_INDEX}; then the same queries once more, now warm"
    columns = ("target", ">recall@10", ">median ms", ">queries", ">rows", "table", "index")
    return (table(caption, columns, rows), *_narrow(of)) if rows else ()


def _narrow(of: Sequence[Publication]) -> tuple[Table, ...]:
    """Return the recall of targets with a form or a width; empty without such a target."""
    rows = [
        (
            _named(each),
            narrowing(each.measured.target),
            number(found.recall_at_10),
            number(found.whole),
            f"{found.loss:.4f} ({found.loss_low:.4f} to {found.loss_high:.4f})",
            count(found.queries),
        )
        for each in of
        if each.measured is not None and (found := each.measured.narrow) is not None
    ]
    caption = f"recall@10 {BY_NARROW}, beside an exact search of the release's; the loss with its interval of 95 %"
    columns = ("target", "vectors", ">recall@10", ">by the release's", ">loss", ">queries")
    return (table(caption, columns, rows),) if rows else ()


def _named(of: Publication) -> str:
    return f"{of.target.name} ({of.target.kind})"


def _serves(of: Publication, release: Release) -> bool:
    return of.now is not None and of.now.release == release.number


def _publication_state(of: Publication, release: Release) -> Cell:
    """Return how the last publication ended, as far as it has."""
    if not of.attempts:
        return Cell("not yet", "○", "quiet")
    if of.failure is not None:
        return Cell(f"failed: {of.failure}", "✕", "bad")
    if of.attempts[-1].ended_at is None:
        return Cell("no end on record", "▶", "going")
    return Cell("served", "✓", "good") if _serves(of, release) else Cell("not served now", "○", "quiet")


def _serving(of: Publication) -> tuple[str, str]:
    """Return the release that a target serves, and when that was found."""
    return (f"release {of.now.release}", moment(of.now.at)) if of.now is not None else ("no release yet", NONE)


def _folder(of: Publication) -> str:
    return MEASURED.within(run=of.attempts[-1].run_key)
