"""Sections as Markdown, for the Prefect UI and for tickets. All words are escaped: a message may hold anything.

`Markup` is text that was escaped here already.
"""

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence

from flows.presentation.figures import data_uri, svg
from flows.presentation.model import Cell, Column, Command, Page, Part, Parts, Section, Table, facts, thinned
from flows.presentation.wording import uri
from infra.store.factory import console_page

MOST_ROWS = 10  # per table; a report folds longer ones
MOST_LETTERS, MOST_LINES = 70, 12  # in one cell of a table
FEW_LETTERS = 54  # with more than three columns, so that a window of 1280 pixels shows the last one
SHARED_LETTERS = 30  # in one of several columns of texts
ROW_LETTERS = 96  # visible part of a row

_LOUD = ("bad", "refused")  # moods in bold

_SPACE = re.compile(r"\s+")
_SPECIAL = re.compile(r"([\\`*_\[\]|~])")
_BACKTICKS = re.compile(r"`+")


class Markup(str):
    """Markdown of one line, fit for a cell of a table."""

    __slots__ = ()


def text(words: str) -> Markup:
    """Return any words as one line that shows exactly them: without markup, HTML or the end of a table's cell."""
    line = _SPACE.sub(" ", words).strip()
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return Markup(_SPECIAL.sub(r"\\\1", line))


def wrapped(words: str, letters: int = MOST_LETTERS) -> Markup:
    """Break long lines, since Prefect's UI clips lines of a cell that don't fit."""
    lines = [
        part
        for line in words.splitlines()
        for part in textwrap.wrap(line, letters, break_on_hyphens=False, max_lines=MOST_LINES, placeholder=" …")
    ]
    return Markup("<br>".join(text(line) for line in lines))


def code(words: str) -> Markup:
    """Return a name, path or command as one line of code, also for a table."""
    line = _SPACE.sub(" ", words).strip().replace("|", r"\|")
    fence = "`" * (1 + max((len(run) for run in _BACKTICKS.findall(line)), default=0))
    pad = " " if "`" in line else ""
    return Markup(f"{fence}{pad}{line}{pad}{fence}") if line else Markup()


def link(words: str, address: str) -> Markup:
    """Return a link to `address`, which is escaped so that nothing in it ends the link."""
    sound = "".join(f"%{ord(sign):02X}" if sign in ' ()<>|\\"`' else sign for sign in address)
    return Markup(f"[{text(words)}]({sound})")


def answer(parts: Parts, workspace: str) -> str:
    """Return a command's answer, for a chat or a ticket; figures are left out, their tables show the numbers."""
    return "\n".join(line for part in parts for line in _part_lines(part, workspace))


def page(section: Section, workspace: str) -> str:
    """Return a section as a page of its own."""
    return "\n".join(section_lines(section, workspace))


def section_lines(section: Section, workspace: str, level: int = 1) -> list[str]:
    """Return the lines of a section and of its parts, whose headings are one level lower."""
    lines = [f"{'#' * level} {text(section.title)}", ""]
    for line in section.lines:
        lines += [text(line), ""]
    if section.quote:
        lines += commands(*section.quote.splitlines())
    if section.figures:
        lines += [*(image(figure.alt, svg(figure)) for figure in section.figures), ""]
    for each in (*section.tables, *section.commands):
        lines += _part_lines(each, workspace)
    for part in section.parts:
        lines += section_lines(part, workspace, level + 1)
    return lines


def _part_lines(part: Part, workspace: str) -> list[str]:
    if isinstance(part, Page):
        tiles = facts(tile.noted for tile in part.tiles)
        heading = f"{part.heading}: {part.state.text}" if part.state else part.heading
        sections = (*part.boxes, *part.sections)
        part = Section(heading, (part.summary, *part.about), tables=(tiles,) * bool(part.tiles), parts=sections)
    if isinstance(part, Section):
        return section_lines(_without_figures(part), workspace)
    if isinstance(part, Command):
        return [text(part.does), "", *commands(*part.lines)]
    if isinstance(part, Table):
        rows = thinned(part.rows, MOST_ROWS) if part.folded else part.rows
        cut = f" ({len(rows)} of {len(part.rows)} rows)" * (len(rows) < len(part.rows))
        shown = [[cell(one, workspace) for one in row] for row in rows]
        lines = [text(part.caption) + cut, ""] if part.caption else []
        return [*lines, *(line for each in _parts(part, shown) for line in table(*each))]
    if isinstance(part, Cell):
        sign = f"**{text(part.sign)}**" if part.mood in _LOUD else text(part.sign)
        return [f"{sign} {text(part.text)}", ""]
    if "\n" in part:
        return commands(*part.splitlines())
    return [text(part), ""] if part else []


def _without_figures(section: Section) -> Section:
    return section._replace(figures=(), parts=tuple(map(_without_figures, section.parts)))


def cell(content: Cell, workspace: str = "") -> str:
    """Return the content of a cell, as plain text unless it needs markup."""
    if content.key:
        stored = uri(workspace, content.key)
        if opened := console_page(workspace, content.key):
            return link(content.text or stored, opened)
        return content.text or code(stored)
    if content.link.startswith(("http://", "https://")):
        return link(content.text, content.link)
    if content.code:
        return code(content.text)
    signed = f"{content.sign} {content.text}".lstrip()
    return Markup(f"**{text(signed)}**") if content.mood in _LOUD else signed


def image(alt: str, drawn: bytes) -> Markup:
    """Return an SVG inside of the page; `alt` is for readers who can't see it."""
    return Markup(f"![{text(alt)}]({data_uri(drawn)})")


def commands(*lines: str) -> list[str]:
    """Return a block of code to be copied, and an empty line after it."""
    fence = "`" * max(3, 1 + max((len(run) for line in lines for run in _BACKTICKS.findall(line)), default=0))
    return [fence, *lines, fence, ""]


def table(columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return a table and an empty line after it."""
    rules = ["---:" if column.number else "---" for column in columns]
    return [_row([column.name for column in columns]), f"| {' | '.join(rules)} |", *map(_row, rows), ""]


def _parts(data: Table, rows: Sequence[Sequence[str]]) -> Iterator[tuple[Sequence[Column], list[list[str]]]]:
    """Yield the columns and rows of a table; one with several columns of texts in parts, each with the rows' names."""
    places = [list(range(len(data.columns)))]
    if data.wordy:
        rows = [[each if isinstance(each, Markup) else wrapped(each, SHARED_LETTERS) for each in row] for row in rows]
        places, room = [[0]], ROW_LETTERS - SHARED_LETTERS
        for place, column in enumerate(data.columns[1:], start=1):
            needed = SHARED_LETTERS if column.long else len(column.name) + 2
            if needed > room:
                places.append([0])
                room = ROW_LETTERS - SHARED_LETTERS
            places[-1].append(place)
            room -= needed
    for part in places:
        yield [data.columns[place] for place in part], [[row[place] for place in part] for row in rows]


def _row(cells: Sequence[str]) -> str:
    letters = MOST_LETTERS if len(cells) <= 3 else FEW_LETTERS
    return f"| {' | '.join(each if isinstance(each, Markup) else wrapped(each, letters) for each in cells)} |"
