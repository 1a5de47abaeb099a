"""What commands print for people, on standard output: lines and tables, as wide as the terminal."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType

from flows.presentation import terminal
from flows.presentation.model import Cell, table
from flows.presentation.wording import visible

COLUMNS = 160  # in a file or a pipe, where no terminal says how wide it is


def say(*lines: str) -> None:
    """Print lines as they are: no markup, and long ones are not broken, so that they can be copied.

    Of their characters, those that would steer the terminal are shown.
    """
    for line in lines:
        _console().print(visible(line), markup=False, highlight=False, soft_wrap=True)


def note(line: str) -> None:
    """Print a line about the work that goes on, on standard error."""
    print(visible(line), file=sys.stderr, flush=True)


def show_table(columns: Sequence[str], rows: Iterable[Sequence[Cell | str]]) -> None:
    """Print a table; `>` before a column's name sets its numbers to the right, `~` lets its text run over lines."""
    show([terminal.Columns(table("", columns, rows))])


def show(content: Iterable[RenderableType], soft_wrap: bool = False) -> None:
    """Print what `flows.presentation.terminal` makes of sections and tables; with `soft_wrap` lines are not broken."""
    console = _console()
    for each in content:
        console.print(each, highlight=False, soft_wrap=soft_wrap)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else COLUMNS)
