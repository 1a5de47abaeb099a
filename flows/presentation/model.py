"""The content of pages as plain values: sections of sentences, tables, figures and commands, for three renderers.

A stage or a run is turned into sections once; `markdown.py`, `html.py` and `terminal.py` show the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from flows.presentation.wording import SIGNS
from tasks.contracts.workspace import HISTORY

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

T = TypeVar("T")

HISTORY_KEY = HISTORY.key()  # the page above all reports

Named = tuple[str, str]  # description and key of a file in the workspace


class Cell(NamedTuple):
    """A text with perhaps a sign, an address, or the key of a file in the workspace.

    `mood` names the colour, which never stands without `sign` and text. A cell with a `key` and no text shows the
    address of the file.
    """

    text: str
    sign: str = ""
    mood: str = ""
    link: str = ""
    key: str = ""
    code: bool = False


class Column(NamedTuple):
    """`number`: its cells are set to the right. `long`: they may take several lines."""

    name: str
    number: bool = False
    long: bool = False


class Table(NamedTuple):
    """The first cell of a row is the row's name. A `folded` one is long: a page opens it on request."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    folded: bool = False

    @property
    def facts(self) -> bool:
        """True for names and their values without headings."""
        return not any(column.name for column in self.columns)

    @property
    def wordy(self) -> bool:
        """True if several columns of texts share the width."""
        return sum(column.long for column in self.columns) > 2

    @property
    def texts(self) -> bool:
        """True for names and texts under headings; if they don't fit side by side, all of them may wrap."""
        return not self.facts and all(column.long for column in self.columns[1:])


class Figure(NamedTuple):
    """A picture, drawn when it is shown. `alt` describes it, `caption` explains it."""

    title: str
    caption: str
    alt: str
    draw: Callable[[Canvas], None]
    height: int = 230  # pixels


class Command(NamedTuple):
    """Lines to copy, and their effect."""

    does: str
    lines: tuple[str, ...]


class Section(NamedTuple):
    """A heading and its content. The `files` of all sections are gathered into one table per page."""

    title: str
    lines: tuple[str, ...] = ()
    id: str = ""
    short: str = ""  # the title in a list of sections
    mood: str = ""  # only for a box at the top of a page
    quote: str = ""  # a message, as it came
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = ()
    commands: tuple[Command, ...] = ()
    parts: tuple[Section, ...] = ()
    files: tuple[Named, ...] = ()


class Tile(NamedTuple):
    """A number at the top of a page; `note` gives a number to compare it with."""

    name: str
    cell: Cell
    note: str = ""

    @property
    def noted(self) -> tuple[str, Cell]:
        """The name, and the number with its note, as a row of facts."""
        return self.name, self.cell._replace(text=f"{self.cell.text}; {self.note}") if self.note else self.cell


class Page(NamedTuple):
    """A report. `key` is its place in the workspace; its links are relative to that."""

    title: str
    workspace: str
    key: str
    heading: str
    summary: str
    about: tuple[str, ...]
    state: Cell | None
    tiles: tuple[Tile, ...]
    boxes: tuple[Section, ...]
    sections: tuple[Section, ...]
    near: tuple[Cell, ...] = ()  # pages to go to from here


Part = str | Cell | Command | Table | Section | Page
Parts = Iterable[Part]  # a command's answer; a text is shown as it is, and of a cell the sign alone is coloured


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Cell | str]], folded: bool = False) -> Table:
    """Make a table; `>` before a column's name sets its numbers to the right, `~` lets its text take several lines.

    Raises:
        ValueError: a row has more or fewer cells than there are columns.
    """
    made = tuple(Column(name.lstrip(">~"), name.startswith(">"), name.startswith("~")) for name in columns)
    cells = tuple(tuple(content if isinstance(content, Cell) else Cell(content) for content in row) for row in rows)
    for row in cells:
        if len(row) != len(made):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(made)} columns")
    return Table(caption, made, cells, folded)


def facts(rows: Iterable[tuple[str, Cell | str]], caption: str = "") -> Table:
    """Make a table of names and values without a heading; names with an empty value are left out."""
    return table(caption, ("", "~"), [row for row in rows if row[1]])


def files(named: Iterable[Named], *pages: tuple[str, Cell | str]) -> Section:
    """Make a section of the places where files are stored; `pages` come first."""
    rows = [*pages, *((what, Cell("", key=key)) for what, key in dict.fromkeys(named))]
    return Section("Files", id="files", tables=(facts(rows, "Where the files are"),))


def unreadable(problems: Sequence[str]) -> tuple[Section, ...]:
    """Return a box that lists unreadable files; empty without problems."""
    if not problems:
        return ()
    lines = ("Some files can't be read, and are left out here. Restore them, or move them away:", *problems)
    return (Section("Not readable", lines, id="unreadable", mood="bad"),)


def state(of: str, text: str = "") -> Cell:
    """Make a cell of the state of a run or a span."""
    sign, mood = SIGNS.get(of, ("○", "quiet"))
    return Cell(text or of, sign, mood)


def ended_as(run_state: str, release: int | None, failure: str | None = None) -> str:
    """Return the state of a run with its release or failure class, as in `Released as 4` and `Failed: HOST`."""
    if release is not None:
        return f"{run_state} as {release}"
    return f"{run_state}: {failure}" if run_state == "Failed" else run_state


def passed(yes: bool, severity: str) -> Cell:
    """Make a cell of the result of a check."""
    if yes:
        return Cell("passed", "✓", "good")
    return Cell("refused", "✕", "bad") if severity == "critical" else Cell("warning", "!", "refused")


def thinned(rows: Sequence[T], most: int) -> Sequence[T]:
    """Return at most `most` of the rows, evenly spread, with the first and the last."""
    if len(rows) <= most:
        return rows
    return [rows[round(place * (len(rows) - 1) / (most - 1))] for place in range(most)]
