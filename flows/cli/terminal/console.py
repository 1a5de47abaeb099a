"""Output of commands for people, on standard output: lines and tables, as wide as the terminal.

Alone, so that a command without bars loads no progress bars.
"""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console, RenderableType

from flows.presentation import terminal
from flows.presentation.model import Cell, table
from flows.presentation.wording import visible

COLUMNS = 160  # width for a file or a pipe


def say(*lines: str) -> None:
    """Print lines without markup and without wrapping, so that they can be copied.

    Control characters are escaped.
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
    """Print sections and tables that `flows.presentation.terminal` rendered; with `soft_wrap` without wrapping."""
    console = _console()
    for each in content:
        console.print(each, highlight=False, soft_wrap=soft_wrap)


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else COLUMNS)
