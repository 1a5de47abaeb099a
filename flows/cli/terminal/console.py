"""Output of commands for people, on standard output: lines and tables, as wide as the terminal.

Alone, so that a command without bars loads no progress bars.
"""

import sys

from rich.console import Console

from flows.presentation import terminal
from flows.presentation.model import Parts
from flows.presentation.wording import visible

COLUMNS = 160  # width for a file or a pipe


def show(parts: Parts, workspace: str = "") -> None:
    """Print an answer. `workspace`: address before the keys of files."""
    console = Console(width=None if sys.stdout.isatty() else COLUMNS)
    for each in terminal.answer(parts, workspace):
        console.print(each, highlight=False, crop=False)


def show_markdown(parts: Parts, workspace: str = "") -> None:
    """Print an answer as Markdown."""
    from flows.presentation import markdown  # with its figures, which nothing else needs

    print(visible(markdown.answer(parts, workspace)), end="", flush=True)


def say(*lines: str) -> None:
    """Print lines as they are, but for control characters, which are escaped."""
    show(lines)


def note(line: str) -> None:
    """Print a line about the work that goes on, on standard error."""
    print(visible(line), file=sys.stderr, flush=True)
