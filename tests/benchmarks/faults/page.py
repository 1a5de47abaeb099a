"""The table of faults in docs/proofs.md, and outcomes.csv beside this file, which has each of them."""

from __future__ import annotations

import csv
import re
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.disturbed.judge import RELEASED
from tests.benchmarks.disturbed.page import table
from tests.benchmarks.faults.cases import ABOUT

OUTCOMES = Path(__file__).with_name("outcomes.csv")


class Row(NamedTuple):
    group: str
    fault: str
    outcome: str
    attempts: str
    lost: int


def write(rows: Iterable[Row]) -> None:
    """Write outcomes.csv: each fault, its outcome, the attempts in the ledger, and the seconds lost."""
    with OUTCOMES.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        writer.writerows(rows)


def read() -> list[Row]:
    """Return the faults of outcomes.csv."""
    with OUTCOMES.open(encoding="utf-8", newline="") as file:
        _, *lines = csv.reader(file)
    return [Row(group, fault, outcome, attempts, int(lost)) for group, fault, outcome, attempts, lost in lines]


def tables(rows: Sequence[Row]) -> str:
    """Return a table with a line for each group: its faults, their outcomes, and the most seconds lost."""
    lines, about = [], []
    for group, each in groupby(rows, key=lambda row: row.group):
        some = list(each)
        faults = dict.fromkeys(_in_short(row) for row in some)
        released = sum(row.outcome == RELEASED for row in some)
        lines.append((group, f"{released} of {len(some)}", "; ".join(faults), max(row.lost for row in some)))
        about.append(textwrap.fill(f"- **{group}**: {' '.join(ABOUT[group].split())}", 120, subsequent_indent="  "))
    return "\n".join([table(("cause", ">released", "faults", ">seconds lost"), lines), "", *about])


def _in_short(row: Row) -> str:
    """The fault, that of one stage as that of each, with its failure class if it has one."""
    fault = re.sub(r"^killed in \w+,", "killed in each stage,", row.fault).replace(";", ",")
    return fault if row.outcome == RELEASED else f"{fault}: **{row.outcome}**"
