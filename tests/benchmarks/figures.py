"""Figures of a benchmark: printed as Markdown while they are measured, and with `--keep` written as JSON.

The file is tests/benchmarks/kept/<program>.json; `make docs` shows it between the program's marks in
docs/benchmarks.md, so that no figure of a page is copied by hand.
"""

from __future__ import annotations

import argparse
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from tasks.foundation.records import Record

ROOT = Path(__file__).resolve().parents[2]
KEPT = Path(__file__).with_name("kept")
PAGE = ROOT / "docs" / "benchmarks.md"

Cell = int | float | str


class Row(Record):
    """A row of a table; `missed`: a value is beyond its limit."""

    cells: tuple[Cell, ...]
    missed: bool = False

    def __str__(self) -> str:
        return f"| {' | '.join(map(shown, self.cells))}{' (missed)' if self.missed else ''} |"


class Table(Record):
    """The first column names a row."""

    columns: tuple[str, ...]
    rows: tuple[Row, ...]

    def __str__(self) -> str:
        return "\n".join([_head(self.columns), *map(str, self.rows)])


class Figures(Record):
    """The tables of one run of a program, with the machine that made them."""

    date: str  # as in 2026-11-29
    commit: str
    machine: str
    cores: int
    load: float  # of all processes, the average of the last 15 minutes
    tables: tuple[Table, ...]

    def __str__(self) -> str:
        cores = "one core" if self.cores == 1 else f"{self.cores} cores"
        made = f"{self.date} at `{self.commit}`, {cores} of {self.machine}, load {self.load:.1f}:"
        return "\n\n".join([made, *map(str, self.tables)])


class Sheet:
    """The tables of a program while it measures; each line is printed at once."""

    def __init__(self) -> None:
        self._tables: list[tuple[tuple[str, ...], list[Row]]] = []

    def table(self, *columns: str) -> None:
        """Begin a table; rows go to it until the next one begins."""
        print(f"\n{_head(columns)}", flush=True)
        self._tables.append((columns, []))

    def row(self, *cells: Cell, good: bool = True) -> None:
        row = Row(cells=cells, missed=not good)
        print(row, flush=True)
        self._tables[-1][1].append(row)

    @property
    def missed(self) -> int:
        """Rows with a value beyond its limit."""
        return sum(row.missed for _, rows in self._tables for row in rows)

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(Table(columns=columns, rows=tuple(rows)) for columns, rows in self._tables)


def add_keep(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--keep", action="store_true", help="write the figures for docs/benchmarks.md")


@contextmanager
def measuring(program: str, keep: bool) -> Iterator[Sheet]:
    """Yield the sheet of a program, and write its file at the end if `keep`."""
    sheet = Sheet()
    yield sheet
    if keep:
        figures = Figures(
            date=f"{datetime.now(UTC):%Y-%m-%d}", commit=_commit(), machine=_machine(),
            cores=len(os.sched_getaffinity(0)), load=round(os.getloadavg()[2], 1), tables=sheet.tables,
        )  # fmt: skip
        write(program, figures)
        print(f"written to {_file(program)}; `make docs` shows it", file=sys.stderr)


def write(program: str, figures: Figures) -> None:
    KEPT.mkdir(exist_ok=True)
    _file(program).write_bytes(figures.to_json())


def page() -> str:
    """Return docs/benchmarks.md with the figures that are kept. Raises ValueError: the page has no place for one."""
    text = PAGE.read_text(encoding="utf-8")
    for file in sorted(KEPT.glob("*.json")):
        begin, end = f"<!-- {file.stem}, written by `make docs` -->\n", f"<!-- end of {file.stem} -->"
        before, found, rest = text.partition(begin)
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise ValueError(f"{PAGE} has no place for {file}: add the lines {begin.strip()} and {end}")
        figures = Figures.model_validate_json(file.read_bytes())
        text = f"{before}{begin}\n{figures}\n\n{end}{after}"
    return text


def shown(cell: Cell) -> str:
    """Return the text of a cell: of a float three digits, or all before the point, as in `0.0123` or `1,090`."""
    if isinstance(cell, float) and cell and math.isfinite(cell):
        return f"{cell:,.{max(0, 2 - math.floor(math.log10(abs(cell))))}f}"
    return cell if isinstance(cell, str) else f"{cell:,}"


def _head(columns: tuple[str, ...]) -> str:
    return f"| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}"


def _file(program: str) -> Path:
    return KEPT / f"{program}.json"


def _commit() -> str:
    """Return the commit of the files, with `+` if some are changed."""
    return subprocess.run(
        ["git", "describe", "--always", "--abbrev=8", "--dirty=+", "--exclude=*"],
        cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=True,
    ).stdout.strip()  # fmt: skip


def _machine() -> str:
    """Return the name of the processor, as in `AMD EPYC`."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "a processor")
