"""The page of a release's map: a point for each sampled item, and the items whose neighbours changed most.

`millrace serve` shows it under `/map`.
"""

import re
import threading
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from flows.cli.serving.pages import HTML, Fresh
from flows.cli.serving.pages import Page as Answer
from flows.cli.serving.search_page import parameters
from flows.cli.serving.search_worker import answered_once
from flows.presentation import html
from flows.presentation.figures import BLUE, GREEN, INK, ORANGE, PALE, PURPLE, SKY, VERMILLION
from flows.presentation.model import Cell, Page, Section, table
from flows.presentation.search import CHANGES, MAP, TO_CHANGES, TO_HISTORY, TO_LINEAGES, TO_RELEASES, TO_SEARCH
from flows.presentation.wording import count, share
from infra.store.base import Store
from tasks.contracts.maps import MappedItem, Moves, ReleaseMap
from tasks.contracts.runs import Release
from tasks.foundation.nouns import plural
from tasks.runs import releases
from tasks.runs.plan import read_plan

WIDTH, MARGIN = 960, 26  # pixels
HIGHEST = 760
COLOURS = (BLUE, VERMILLION, GREEN, PURPLE, ORANGE, SKY, INK)  # then the rest in PALE; each has its own shape as well
LINES = 10  # movers that are drawn
TEMPLATE = Path(__file__).with_name("templates") / "map.html.jinja"


class Shown(NamedTuple):
    """The release of a map, the one that it is compared with, and the choices of the reader."""

    release: Release
    before: Release | None
    colour: str  # name of a feature; another name counts as the one that separates best
    others: tuple[int, ...]  # releases to compare with
    current: int


class Group(NamedTuple):
    """The items with one value of the feature, or with the rest of the values. `shape` is a number of the template."""

    name: str
    items: int
    colour: str
    shape: int


class Point(NamedTuple):
    """An item. `says` is shown when the pointer rests on it."""

    x: float
    y: float
    shape: int
    says: str


class Line(NamedTuple):
    """From the place that a mover had to its place now; `number` is its row in the table."""

    x_before: float
    y_before: float
    x: float
    y: float
    number: int
    says: str


class Drawing(NamedTuple):
    width: int
    height: int
    groups: tuple[Group, ...]
    points: tuple[Point, ...]
    lines: tuple[Line, ...]
    alt: str


class Form(NamedTuple):
    action: str
    features: tuple[str, ...]
    feature: str
    others: tuple[int, ...]
    before: int | None


def map_html(workspace: str, found: ReleaseMap, shown: Shown) -> bytes:
    """Return the page of a map."""
    release, feature = shown.release, shown.colour if shown.colour in found.features else separating(found)
    title = f"Release {release.number}{', the current one' if release.number == shown.current else ''}: map"
    to_changes = TO_CHANGES._replace(link=f"{CHANGES}/{release.number}")
    page = Page(
        title=title,
        workspace=workspace,
        key="",
        heading=title,
        summary=f"{_sampled(found)} By model {release.model.version}, trained up to span {release.span.name}.",
        about=_about(found, feature),
        state=None,
        tiles=(),
        boxes=(),
        sections=_sections(found),
        near=(TO_SEARCH, to_changes, TO_RELEASES, TO_HISTORY, *TO_LINEAGES),
    )
    before = shown.before.number if shown.before is not None else None
    form = Form(f"{MAP}/{release.number}", found.features, feature, shown.others, before)
    return html.render(page, TEMPLATE, form=form, drawing=drawing(found, feature) if found.items else None)


def separating(found: ReleaseMap) -> str:
    """Return the feature whose values lie apart most: neighbours share it more than by chance; empty without one."""
    by_feature = dict(zip(found.features, found.separation, strict=True))
    return max(by_feature, key=lambda name: by_feature[name] or 0.0, default="")


def nothing_html(workspace: str, why: str) -> bytes:
    """Return a page that says why there is no map."""
    near = (TO_SEARCH, TO_CHANGES, TO_RELEASES, TO_HISTORY)
    page = Page("Map", workspace, "", "Map", why, about=(), state=None, tiles=(), boxes=(), sections=(), near=near)
    return html.render(page)


def drawing(found: ReleaseMap, feature: str) -> Drawing:
    """Return the points of at least one item in pixels, both axes on one scale, coloured by a feature."""
    which = found.features.index(feature) if feature else None
    values = [item.values[which] if which is not None else "" for item in found.items]
    most = [value for value, _ in sorted(Counter(values).items(), key=lambda one: (-one[1], one[0]))]
    shape = {value: min(place, len(COLOURS)) for place, value in enumerate(most)}
    moved = found.moves.movers[:LINES] if found.moves is not None else ()
    xs = [item.x for item in found.items] + [mover.x_before for mover in moved]
    ys = [item.y for item in found.items] + [mover.y_before for mover in moved]
    across, up = max(xs) - min(xs) or 1.0, max(ys) - min(ys) or 1.0
    scale = min((WIDTH - 2 * MARGIN) / across, (HIGHEST - 2 * MARGIN) / up)
    left = (WIDTH - across * scale) / 2

    def at(x: float, y: float) -> tuple[float, float]:
        return round(left + (x - min(xs)) * scale, 1), round(MARGIN + (max(ys) - y) * scale, 1)

    points = (
        Point(*at(item.x, item.y), shape[value], _says(item, found.features))
        for item, value in zip(found.items, values, strict=True)
    )
    lines = (
        Line(*at(one.x_before, one.y_before), *at(one.x, one.y), number, f"{number}. {one.item_id}: {one.text}")
        for number, one in enumerate(moved, start=1)
    )
    return Drawing(
        width=WIDTH,
        height=round(up * scale + 2 * MARGIN),
        groups=_groups(values, most) if which is not None else (),
        points=tuple(points),
        lines=tuple(lines),
        alt=f"Scatter plot of {plural(len(found.items), 'item')} by t-SNE",
    )


def _groups(values: list[str], most: list[str]) -> tuple[Group, ...]:
    counts = Counter(values)
    named = [
        Group(value or "none", counts[value], colour, place)
        for place, (value, colour) in enumerate(zip(most, COLOURS, strict=False))
    ]
    rest = most[len(COLOURS) :]
    if rest:
        items = sum(counts[value] for value in rest)
        named.append(Group(f"{plural(len(rest), 'other value')}", items, PALE, len(COLOURS)))
    return tuple(named)


def _says(item: MappedItem, features: tuple[str, ...]) -> str:
    values = (f"{name}: {value}" for name, value in zip(features, item.values, strict=True) if value)
    return "\n".join((item.item_id, item.text, ", ".join(values))).strip()


def _sampled(found: ReleaseMap) -> str:
    if found.every == 1:
        return f"{plural(len(found.items), 'item')}: all of the release."
    return (
        f"{count(len(found.items))} of {plural(found.vectors, 'item')}: every item whose hash is a multiple of "
        f"{found.every}, the same ones in each release."
    )


def _about(found: ReleaseMap, feature: str) -> tuple[str, ...]:
    said = (
        "The places are by t-SNE: items that are near each other in the release are near on the map. Distances between "
        "groups, their sizes and the directions mean nothing."
    )
    apart = found.separation[found.features.index(feature)] if feature else None
    if apart is None:
        return (said,)
    return (
        said,
        f"How much neighbours share their {feature}, from 0 (as by chance) to 1 (all of them): {apart:.2f}.",
    )


def _sections(found: ReleaseMap) -> tuple[Section, ...]:
    moves = found.moves
    if moves is None:
        return (Section("Movers", ("No release of another model came before, so nothing has moved.",), id="movers"),)
    return (_movers(moves, found.release),)


def _movers(moves: Moves, release: int) -> Section:
    if moves.kept is None:
        return Section("Movers", (f"Fewer than two items here are in release {moves.before} too.",), id="movers")
    near, same = plural(moves.neighbours, "nearest neighbour"), share(moves.kept)
    lines = [
        f"An item has {near} among the {count(moves.shared)} items here that both releases hold. On average {same} of "
        f"them are the same in release {moves.before} and in {release}. Vectors of two models can't be compared with "
        "each other; neighbours can.",
        f"The lines of the first {min(LINES, len(moves.movers))} begin in the middle of the places that their "
        f"neighbours in release {moves.before} have now.",
    ]
    rows = [
        (
            str(number),
            Cell(one.item_id, code=True),
            one.text if one.same_content else f"{one.text} (changed)",
            f"{one.kept} of {moves.neighbours}",
            "\n".join(one.before),
            "\n".join(one.after),
        )
        for number, one in enumerate(moves.movers, start=1)
    ]
    if not rows:
        return Section(f"Movers since release {moves.before}", (lines[0],), id="movers")
    columns = ("#", "item", "~text", ">neighbours kept", "~lost, nearest first", "~new, nearest first")
    made = table("The items that kept the fewest neighbours", columns, rows)
    return Section(f"Movers since release {moves.before}", tuple(lines), id="movers", tables=(made,))


MOST_MAPS = 8  # maps, of about 1 MB each
MOST_OFFERED = 12  # releases to compare with, each a read of the store; an address may name any other
_PATH = re.compile(rf"{MAP}(?:/([1-9]\d{{0,8}}))?")
_NUMBER = re.compile(r"[1-9]\d{0,8}", re.ASCII)

_Key = tuple[int, int, int | None]  # numbers of the release, of the current one, and of the one compared with


class MapPages:
    """The maps of one workspace; several threads may ask at once, and one map is made at a time.

    A worker makes a map, which is kept for the next requests.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._making = threading.Lock()
        self._made: dict[_Key, ReleaseMap] = {}  # releases never change

    def page(self, path: str, query: str) -> Answer | None:
        """Return a page of maps; None if it does not exist. Raises as `map`."""
        found = _PATH.fullmatch(path)
        made = self.map(int(found[1]) if found[1] else None, query) if found else None
        return Answer(HTML, made) if made is not None else None

    def map(self, number: int | None, query: str) -> bytes | None:
        """Return the map of a release, by default of the current one; None if it does not exist.

        Args:
            query: such as `colour=category&with=3`; an unknown colour or release counts as not given.

        Raises:
            StageError: the worker failed, or a record is not readable; names the file.
        """
        current = releases.current(self._store)
        if current is None:
            return nothing_html(self._store.uri, "There is no release yet. To make one: millrace run")
        if number is not None and not releases.is_made(self._store, number):
            return None
        release = current if number is None else releases.read(self._store, number)
        if releases.is_pruned(self._store, release.number):
            return nothing_html(self._store.uri, f"millrace prune has deleted the vectors of release {release.number}.")
        given = parameters(query)
        before = self._before(release, given.get("with", ""))
        found = self._map(release, current, before)
        shown = Shown(release, before, given.get("colour", ""), self._others(release, before), current.number)
        return map_html(self._store.uri, found, shown)

    def _before(self, release: Release, asked: str) -> Release | None:
        """Return the release to compare with: the one asked for, else the one of another model before."""
        if _NUMBER.fullmatch(asked) and int(asked) != release.number and self._whole(int(asked)):
            return releases.read(self._store, int(asked))
        return releases.of_another_model_before(self._store, release)

    def _others(self, release: Release, before: Release | None) -> tuple[int, ...]:
        """Return the newest whole releases with new models, and the one compared with, the newest first."""
        newest = [each.number for each in islice(releases.with_new_models(self._store), MOST_OFFERED)]
        whole = {number for number in newest if number != release.number and self._whole(number)}
        return tuple(sorted(whole | ({before.number} if before is not None else set()), reverse=True))

    def _whole(self, number: int) -> bool:
        return releases.is_made(self._store, number) and not releases.is_pruned(self._store, number)

    def _map(self, release: Release, current: Release, before: Release | None) -> ReleaseMap:
        key = release.number, current.number, before.number if before is not None else None
        with self._making:
            if key not in self._made:
                config = read_plan(self._store, release.run_key).config
                line = answered_once("laboratory.map", self._store, release, current, before, config)
                self._made = self._made if len(self._made) < MOST_MAPS else {}
                self._made[key] = ReleaseMap.model_validate_json(line)
            return self._made[key]


def served(store: Store, _fresh: Fresh) -> Callable[[str, str], Answer | None]:
    """Return what answers the requests for maps of a workspace."""
    return MapPages(store).page
