"""Markdown as the Prefect UI reads it. Words from elsewhere (messages, names, slices) pass through as they are.

Every cell of a table is escaped unless it was made here: `Markup` is text that is known to be sound.
"""

from __future__ import annotations

import base64
import re
import textwrap
from collections.abc import Iterable, Sequence

MOST_LETTERS, MOST_LINES = 70, 12  # in one cell of a table
FEW_LETTERS = 54  # in one of more than three columns, or a window of 1280 pixels cuts the last one off

_SPACE = re.compile(r"\s+")
_SPECIAL = re.compile(r"([\\`*_\[\]|~])")
_BACKTICKS = re.compile(r"`+")


class Markup(str):
    """Markdown of one line, fit for a cell of a table."""

    __slots__ = ()


def text(words: str) -> Markup:
    """Words from anywhere as one line that shows just them: no markup, no HTML, no end of a table's cell."""
    line = _SPACE.sub(" ", words).strip()
    line = line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return Markup(_SPECIAL.sub(r"\\\1", line))


def wrapped(words: str, letters: int = MOST_LETTERS) -> Markup:
    """In several lines if long: the UI never breaks the lines of a cell, and hides what does not fit."""
    lines = textwrap.wrap(words, letters, break_on_hyphens=False, max_lines=MOST_LINES, placeholder=" …")
    return Markup("<br>".join(text(line) for line in lines))


def code(words: str) -> Markup:
    """A name, path or command as one line of code; in a table too."""
    line = _SPACE.sub(" ", words).strip().replace("|", r"\|")
    fence = "`" * (1 + max((len(run) for run in _BACKTICKS.findall(line)), default=0))
    pad = " " if "`" in line else ""
    return Markup(f"{fence}{pad}{line}{pad}{fence}") if line else Markup()


def bold(words: str) -> Markup:
    return Markup(f"**{text(words)}**")


def link(words: str, address: str) -> Markup:
    """A link that opens `address`, which is written so that nothing in it ends the link."""
    sound = "".join(f"%{ord(sign):02X}" if sign in ' ()<>|\\"`' else sign for sign in address)
    return Markup(f"[{text(words)}]({sound})")


def image(words: str, svg: bytes) -> Markup:
    """A picture that lies in the page itself; `words` are for those who can't see it."""
    return Markup(f"![{text(words)}](data:image/svg+xml;base64,{base64.b64encode(svg).decode()})")


def commands(*lines: str) -> list[str]:
    """A block of code, to be copied, and an empty line after it."""
    return ["```", *lines, "```", ""]


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table with an empty line after it; `>` before a column's name sets its numbers to the right.

    Raises:
        ValueError: a row has more or fewer cells than there are columns.
    """
    names = [column.removeprefix(">") for column in columns]
    rules = ["---:" if column.startswith(">") else "---" for column in columns]
    lines = [_row(names), f"| {' | '.join(rules)} |"]
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row of {len(row)} cells in a table of {len(columns)} columns")
        lines.append(_row(row))
    return [*lines, ""]


def counted(number: int, noun: str) -> str:
    """As in `1 shard` and `2,000 shards`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _row(cells: Sequence[str]) -> str:
    letters = MOST_LETTERS if len(cells) <= 3 else FEW_LETTERS
    return f"| {' | '.join(cell if isinstance(cell, Markup) else wrapped(cell, letters) for cell in cells)} |"
