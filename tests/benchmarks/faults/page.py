"""The tables of faults in docs/proofs.md: one for each group."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

from tests.benchmarks.disturbed.page import table
from tests.benchmarks.faults.cases import ABOUT


class Row(NamedTuple):
    group: str
    fault: str
    outcome: str
    attempts: str
    lost: int


def tables(rows: Sequence[Row]) -> str:
    """A section for each group, in Markdown."""
    parts = []
    for group, some in groupby(rows, key=lambda row: row.group):
        about = textwrap.fill(" ".join(ABOUT[group].split()), 120)
        counted = table(("fault", "outcome", "attempts", ">seconds lost"), [row[1:] for row in some])
        parts.append(f"### {group}\n\n{about}\n\n{counted}")
    return "\n\n".join(parts)
