"""Tables of a page as values, which the template lays out; a cell is text, and perhaps a sign, a link or code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from flows.reports.wording import SIGNS
from tasks.contracts import Verdict
from tasks.history import RunState


class Cell(NamedTuple):
    """`mood` names the colour, which never stands without `sign` and text."""

    text: str
    sign: str = ""
    mood: str = ""
    link: str = ""
    code: bool = False


class Column(NamedTuple):
    """`number`: its cells are set to the right. `long`: they may take several lines."""

    name: str
    number: bool = False
    long: bool = False


class Table(NamedTuple):
    """The first cell of a row is the row's name."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    @property
    def facts(self) -> bool:
        """Whether it is names and what is said of them, without a heading."""
        return not any(column.name for column in self.columns)

    @property
    def texts(self) -> bool:
        """Whether it is names and texts under headings; where there is no room for them side by side, all may break."""
        return not self.facts and all(column.long for column in self.columns[1:])


def table(caption: str, columns: Sequence[str], rows: Iterable[Sequence[Cell | str]]) -> Table:
    """A table; `>` before a column's name sets its numbers to the right, `~` lets its text run over several lines."""
    made = tuple(Column(name.lstrip(">~"), name.startswith(">"), name.startswith("~")) for name in columns)
    return Table(caption, made, tuple(tuple(map(_cell, row)) for row in rows))


def state(of: RunState, text: str = "") -> Cell:
    sign, mood = SIGNS[of]
    return Cell(text or of, sign, mood)


def verdict(one: Verdict) -> Cell:
    return Cell("does not apply", NO_SIGN, "quiet") if one.passed is None else passed(one.passed, one.severity)


def passed(yes: bool, severity: str) -> Cell:
    """What a check or gate came to."""
    if yes:
        return Cell("passed", "✓", "good")
    return Cell("refused", "✕", "bad") if severity == "critical" else Cell("warning", "!", "refused")


NO_SIGN = "○"


def _cell(content: Cell | str) -> Cell:
    return content if isinstance(content, Cell) else Cell(content)
