"""The first page of `millrace serve`: a query, and an earlier release's hits next to the current one's."""

from collections.abc import Sequence
from typing import NamedTuple

from flows.presentation import html
from flows.presentation.model import Cell, Page, Section, Table, table
from flows.presentation.wording import moment, shortened
from tasks.contracts.runs import Release
from tasks.contracts.search import Answer, Hit
from tasks.contracts.workspace import LINEAGES_PAGE
from tasks.foundation.nouns import plural
from tasks.foundation.process import laboratory_is_here

# Addresses of `millrace serve`.
SEARCH, CHANGES, MAP, RELEASES, HISTORY, LINEAGES = "/", "/changes", "/map", "/releases", "/history", "/lineages"
TO_SEARCH = Cell("Search", link=SEARCH)
TO_CHANGES = Cell("What changed", link=CHANGES)
TO_RELEASES = Cell("Releases", link=RELEASES)
TO_HISTORY = Cell("History of all runs", link=HISTORY)

# Pages of the laboratory, which a team may have deleted, by address: the module whose `served` makes them.
FURTHER = {
    MAP: "flows.laboratory.map_page",
    LINEAGES: "flows.laboratory.lineages_page",
    f"/{LINEAGES_PAGE.key()}": "flows.laboratory.lineages_page",
}
if not laboratory_is_here():
    FURTHER.clear()
TO_MAP = (Cell("Map", link=MAP),) if MAP in FURTHER else ()
TO_LINEAGES = (Cell("Lineages", link=LINEAGES),) if LINEAGES in FURTHER else ()

MOST_HITS = 100
LETTERS = 300  # shown of an item's text


def to_map(release: int) -> tuple[Cell, ...]:
    """Return the link to the map of a release, if there are maps."""
    return tuple(link._replace(link=f"{MAP}/{release}") for link in TO_MAP)


class Asked(NamedTuple):
    """A request for a search. `compared` is the number of the release on the left; None: the one before."""

    text: str = ""
    k: int = 10
    compared: int | None = None


class SearchedRelease(NamedTuple):
    """A release, and its answer or the reason of a failure; neither without a query."""

    release: Release
    answer: Answer | None = None
    trouble: str = ""


class _Other(NamedTuple):
    number: int
    text: str


class _Form(NamedTuple):
    offered: bool
    text: str
    k: int
    most: int
    others: tuple[_Other, ...]
    compared: int | None


def search_html(
    workspace: str,
    asked: Asked,
    current: SearchedRelease | None,
    compared: SearchedRelease | None,
    others: Sequence[Release],
    trouble: Sequence[str],
) -> bytes:
    """Return the page.

    Args:
        current: the current release; None before the first one.
        compared: the release on the left; None without another release.
        others: the releases to choose from for the left.
        trouble: problems with the query or the workspace, in sentences.
    """
    sides = [side for side in (compared, current) if side is not None and (side.answer or side.trouble)]
    boxes = (Section("Not all could be done", tuple(trouble), id="trouble", mood="bad"),) if trouble else ()
    page = Page(
        title=f"{asked.text}: search" if asked.text else "Search",
        workspace=workspace,
        key="",
        heading="Search",
        summary=_summary(current.release if current else None),
        about=(),
        state=None,
        tiles=(),
        boxes=boxes,
        sections=tuple(_section(side, side is current, compared if side is current else None) for side in sides),
        near=(TO_CHANGES, *TO_MAP, TO_RELEASES, TO_HISTORY, *TO_LINEAGES),
    )
    chosen = compared.release.number if compared else None
    offered = tuple(_Other(one.number, _label(one)) for one in others)
    form = _Form(current is not None, asked.text, asked.k, MOST_HITS, offered, chosen)
    return html.render(page, "search", form=form)


def _summary(release: Release | None) -> str:
    if release is None:
        return "There is no release to search yet. The first model that the gates accept makes one: millrace run"
    return (
        f"Release {release.number} is the current one: {plural(release.vectors, 'vector')} by model "
        f"{release.model.version}, trained up to span {release.span.name}."
    )


def _label(release: Release) -> str:
    how = "refreshed" if release.refreshed else "made"
    return f"release {release.number}: {release.span.name}, {how} {moment(release.created_at)[:10]}"


def _section(side: SearchedRelease, current: bool, before: SearchedRelease | None) -> Section:
    """Return the hits of a release, each with its place in the other release's hits, if compared."""
    release = side.release
    title, name = f"Release {release.number}{', the current one' * current}", f"release-{release.number}"
    if side.answer is None:
        return Section(title, (side.trouble,), id=name, mood="bad")
    took = f"{side.answer.seconds * 1000:,.0f} ms"
    facts = (
        f"Model {release.model.version}, trained up to span {release.span.name}.",
        f"Compared with {plural(release.vectors, 'vector')} in {took}.",
    )
    earlier = before.answer.hits if before and before.answer else None
    return Section(title, facts, id=name, tables=(_hits(side.answer.hits, earlier, before),))


def _hits(hits: Sequence[Hit], earlier: Sequence[Hit] | None, before: SearchedRelease | None) -> Table:
    places = {hit.item_id: place for place, hit in enumerate(earlier or (), start=1)}
    compared = (f"in {before.release.number}",) if earlier is not None and before else ()
    rows = [
        (
            str(place),
            f"{hit.score:.3f}",
            *((_moved(place, places.get(hit.item_id), len(hits)),) if compared else ()),
            Cell(hit.item_id, code=True),
            shortened(hit.text, LETTERS),
        )
        for place, hit in enumerate(hits, start=1)
    ]
    new = sum(hit.item_id not in places for hit in hits)
    beside = f"; {new or 'none'} of them {'is' if new == 1 else 'are'} not in the other {len(earlier or ())}"
    caption = f"The best {len(hits)}" + beside * bool(compared)
    return table(caption, ("#", ">cosine", *compared, "item", "~text"), rows)


def _moved(now: int, then: int | None, shown: int) -> Cell:
    """Return the place that a hit had before; of one outside the `shown` hits it is not known."""
    if then is None:
        return Cell(f"new in these {shown}", "+", "good")
    return Cell(f"{then}" if now == then else f"{then} {'↑' if now < then else '↓'}")
