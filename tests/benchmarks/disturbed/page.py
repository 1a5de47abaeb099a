"""The pages of disturbed runs: tables in Markdown, and the machine that the runs were on."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table; columns that begin with `>` are flush right."""
    dashes = ["---:" if column.startswith(">") else "---" for column in columns]
    head = [f"| {' | '.join(column.removeprefix('>') for column in columns)} |", f"|{'|'.join(dashes)}|"]
    return "\n".join([*head, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def machine() -> str:
    """Return the number of cores and the name of the processor, from Linux."""
    found = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.M)
    return f"{len(os.sched_getaffinity(0))} cores of {found[1] if found else 'an unnamed processor'}"
