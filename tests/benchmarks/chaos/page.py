"""The table of chaos in docs/proofs.md: a line for each act, with a column for each place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.benchmarks.chaos.campaign import Report, counts
from tests.benchmarks.chaos.draws import Act
from tests.benchmarks.disturbed.page import table


class Column(NamedTuple):
    """A place: its title, its runs as a sentence, and a cell for each act."""

    title: str
    well: str
    cells: Mapping[str, str]


def tables(reports: Sequence[Report]) -> str:
    """Return the runs of the places by act; one with violations is shown as it is."""
    return in_columns([_column(report) for report in reports])


def in_columns(columns: Sequence[Column]) -> str:
    """Return the sentences of the places, and their cells side by side."""
    acts = [act for act in Act if any(act in column.cells for column in columns)]
    rows = [(f"`{act}`", *(column.cells.get(act, "-") for column in columns)) for act in acts]
    lines = [f"- {column.well}" for column in columns]
    return "\n".join([*lines, "", table(("act", *(f">{column.title}" for column in columns)), rows)])


def _column(report: Report) -> Column:
    place, _, rest = report.place.partition(", ")
    cells = {}
    for act, _, itself, rerun, failed, violations, _ in counts(report.runs, "act"):
        cells[str(act)] = cell(itself, rerun, failed, violations)
    well = f"{len(report.runs) - report.wrong} of {len(report.runs)} as they must"
    return Column(place, f"**{place}**, {rest}, seed {report.seed}: {well}", cells)


def cell(itself: object, rerun: object, failed: object, violations: object) -> str:
    """Return as `7/4`, by itself and by one rerun, with the runs that failed or have violations."""
    rest = f", {failed} not" if failed else ""
    return f"{itself}/{rerun}{rest}{f', {violations} with violations' if violations else ''}"
