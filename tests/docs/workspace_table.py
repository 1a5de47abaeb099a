"""The table of files in docs/architecture.md: a copy of the workspace's own table."""

from __future__ import annotations

import re
from pathlib import Path

from tasks.contracts.kinds import Kept
from tasks.contracts.workspace import EXISTS, TABLE

PAGE = Path(__file__).resolve().parents[2] / "docs" / "architecture.md"
_KEPT = {Kept.reached: "while needed", Kept.shown: "with its run", Kept.done: "for now"}  # in words in the page
_TABLE = re.compile(r"^\| file \|.*?\n(?=\n)", re.M | re.S)


def page() -> str:
    """Return the page with the table as it is now."""
    lines = ["| file | holds | written by | complete when, and kept |", "|---|---|---|---|"]
    for kind in TABLE:
        key = re.sub(r"\{(\w+)(?::\w+)?\}", r"<\1>", kind.pattern)
        ends = [kind.complete] if kind.complete != EXISTS else []
        ends += [_KEPT[kind.kept]] if kind.kept in _KEPT else []
        lines.append(f"| `{key}` | {kind.name}: {_holds(kind.record)} | {kind.writer} | {'; '.join(ends)} |")
    return _TABLE.sub(lambda _: "\n".join(lines) + "\n", PAGE.read_text(), count=1)


def _holds(record: str) -> str:
    return f"`{record}`" if re.fullmatch(r"([A-Z][a-z]+)+", record) else record
