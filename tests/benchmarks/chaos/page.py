"""The tables of chaos in docs/proofs.md: one for each place."""

from __future__ import annotations

from collections.abc import Sequence

from tests.benchmarks.chaos.campaign import Report, counts
from tests.benchmarks.disturbed.page import table

COLUMNS = ("act", ">runs", ">by itself", ">by one rerun", ">not", ">violations")


def tables(reports: Sequence[Report]) -> str:
    """Return a table for each report; one with violations is shown as it is."""
    return "\n\n".join(map(_table, reports))


def _table(report: Report) -> str:
    well = f"{len(report.runs) - report.wrong} of {len(report.runs)} as they must"
    rows = [(f"`{act}`", *others[:-1]) for act, *others in counts(report.runs, "act")]
    return f"**{report.place}**, seed {report.seed}: {well}\n\n{table(COLUMNS, rows)}"
