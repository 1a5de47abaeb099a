"""Releases, refreshes included: which one serves, the model and the catalogue of each."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from flows.presentation import html, queries
from flows.presentation.model import Cell, Page, Section, Tile, table, unreadable
from flows.presentation.search import CHANGES, TO_CHANGES, TO_HISTORY, TO_LINEAGES, TO_MAP, TO_SEARCH
from flows.presentation.wording import NONE, ON_HOLDOUT, count, moment
from tasks.contracts.evaluation import MAIN
from tasks.contracts.kinds import run_folder
from tasks.contracts.runs import Hold, Release
from tasks.foundation.nouns import plural

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
    return f"span {serving.span.name}, {plural(serving.vectors, 'vector')}" if serving else "an older release"


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
