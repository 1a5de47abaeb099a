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
        lines.append(f"| `{key}` | {_holds(kind.name, kind.record)} | {kind.writer} | {'; '.join(ends)} |")
    return _TABLE.sub(lambda _: "\n".join(lines) + "\n", PAGE.read_text(encoding="utf-8"), count=1)


def _holds(name: str, record: str) -> str:
    """Return name and type, or the type alone if it says the same."""
    if not re.fullmatch(r"([A-Z][a-z]+)+", record):
        return record if name == record else f"{name}: {record}"
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", record).lower()
    return f"`{record}`" if words == name else f"{name}: `{record}`"
