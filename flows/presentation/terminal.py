"""Sections for a terminal, as rich prints them; figures are left out, their tables show the numbers."""

from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

from flows.presentation.model import Cell, Column, Command, Page, Parts, Section, Table, facts, thinned
from flows.presentation.wording import NONE, uri, visible

MOST_ROWS = 10  # per table; a report folds longer ones
NARROWEST = 24  # letters of a column whose text may take several lines
GAP = 2
_STYLES = {"good": "green", "bad": "bold red", "refused": "yellow", "going": "cyan"}


def answer(parts: Parts, workspace: str = "") -> Iterator[RenderableType]:
    """Yield a command's answer; its own lines are not broken."""
    for part in parts:
        if isinstance(part, str):
            yield Unbroken(visible(part))
        elif isinstance(part, Cell):
            yield Unbroken((part.sign, _STYLES.get(part.mood, "")), f" {visible(part.text)}")
        elif isinstance(part, Command):
            yield Unbroken(visible(part.does))
            yield _to_copy(part)
        elif isinstance(part, Table):
            yield Columns(part, workspace)
        elif isinstance(part, Section):
            yield from render(part, workspace)
        else:
            yield from page(part)


def page(content: Page) -> Iterator[RenderableType]:
    """Yield a whole report: its subject, its numbers, and its sections."""
    yield _headline(content.heading, content.state)
    yield _plain(content.summary)
    yield from map(_plain, content.about)
    yield Columns(facts(tile.noted for tile in content.tiles))
    for section in (*content.boxes, *content.sections):
        yield from render(section, content.workspace)


def render(section: Section, workspace: str) -> Iterator[RenderableType]:
    """Yield a section and its parts, with an empty line before each."""
    yield Text()
    yield _plain(section.title, style="bold")
    yield from map(_plain, section.lines)
    if section.quote:
        yield Unbroken(visible(section.quote))
    for table in section.tables:
        rows = thinned(table.rows, MOST_ROWS) if table.folded else table.rows
        cut = f" ({len(rows)} of {len(table.rows)} rows)" * (len(rows) < len(table.rows))
        if table.caption:
            yield _plain(table.caption + cut, style="dim")
        yield Columns(table._replace(rows=tuple(rows)), workspace)
    for command in section.commands:
        yield _plain(command.does)
        yield _to_copy(command)
    for part in section.parts:
        yield from render(part, workspace)


class Columns:
    """A table without frame. One that is too wide has its long texts below each row, or is cut into several tables."""

    def __init__(self, table: Table, workspace: str = "") -> None:
        self._table = table
        self._texts = [[_text(cell, workspace) for cell in row] for row in table.rows]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        parts = self._cut(options.max_width)
        short = [place for place, column in enumerate(self._table.columns) if not (column.long and place)]
        if len(parts) > 1 and len(short) < len(self._table.columns) and self._width(short) <= options.max_width:
            yield from self._with_texts_below(short)
            return
        for places in parts:
            made = RichTable(box=None, header_style="bold", pad_edge=False, show_header=not self._table.facts)
            for place in places:
                column = self._table.columns[place]
                wraps = column.long or len(places) <= 2
                made.add_column(
                    _plain(column.name),
                    justify="right" if column.number else "left",
                    overflow="fold",
                    no_wrap=not wraps,
                )
            for row in self._texts:
                made.add_row(*(row[place] for place in places))
            yield made

    def _with_texts_below(self, short: Sequence[int]) -> Iterator[RenderableType]:
        """Yield a line of the short cells of each row, and the long texts under it."""
        columns = self._table.columns
        long = [place for place in range(len(columns)) if place not in short]
        yield self._line([_plain(column.name, style="bold") for column in columns], short)
        for row in self._texts:
            yield self._line(row, short)
            for place in long:
                if str(row[place]) not in ("", NONE):
                    name = f"{columns[place].name}: " if place != long[0] else ""
                    yield Padding(Text.assemble((name, "dim"), row[place]), (0, 0, 0, GAP))

    def _line(self, cells: Sequence[Text], places: Sequence[int]) -> Text:
        padded = []
        for place in places:
            cell, column = cells[place].copy(), self._table.columns[place]
            cell.align("right" if column.number else "left", self._needed(place, column))
            padded.append(cell)
        return Text(" " * GAP, no_wrap=True).join(padded)

    def _width(self, places: Sequence[int]) -> int:
        return sum(self._needed(place, self._table.columns[place]) + GAP for place in places) - GAP

    def _cut(self, width: int) -> list[list[int]]:
        """Positions of the columns of each part."""
        needed = [self._needed(place, column) for place, column in enumerate(self._table.columns)]
        parts, room = [[0]], width - needed[0]
        for place in range(1, len(needed)):
            if needed[place] + GAP > room and len(parts[-1]) > 1:
                parts.append([0])
                room = width - needed[0]
            parts[-1].append(place)
            room -= needed[place] + GAP
        return parts

    def _needed(self, place: int, column: Column) -> int:
        widest = max((cell_len(str(row[place])) for row in self._texts), default=0)
        wanted = max(widest, cell_len(column.name))
        return min(wanted, NARROWEST) if column.long else wanted


class Unbroken:
    """Lines that are not broken, so that they can be copied. A bare text loses that when it is printed."""

    def __init__(self, *parts: str | tuple[str, str]) -> None:
        self._text = Text.assemble(*parts, no_wrap=True, overflow="ignore")

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield self._text


def _headline(heading: str, state: Cell | None) -> Text:
    line = _plain(heading, style="bold")
    return line.append("  ").append_text(_text(state)) if state else line


def _to_copy(command: Command) -> Unbroken:
    return Unbroken(visible("\n".join(f"  {line}" for line in command.lines)))


def _plain(words: str, style: str = "") -> Text:
    """Return words without markup, with control characters escaped."""
    return Text(visible(words), style=style)


def _text(cell: Cell, workspace: str = "") -> Text:
    words = cell.link or cell.text or (uri(workspace, cell.key) if cell.key else "")
    return _plain(f"{cell.sign} {words}".lstrip(), _STYLES.get(cell.mood, ""))
