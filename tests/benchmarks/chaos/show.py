"""The report of a campaign in the terminal."""

from __future__ import annotations

from flows.cli.terminal.console import say, show_table
from flows.presentation.wording import plural
from tests.benchmarks.chaos.campaign import ChaosReport, rows


def show(report: ChaosReport) -> None:
    """Print how the runs ended by act and stage, and how to repeat those of which something does not hold."""
    counted = [
        (row.act, row.stage, *map(str, (row.count, row.by_itself, row.by_one_rerun, row.not_ended, row.violations)))
        for row in rows(report)
    ]
    lost = [f"{row.median_seconds_lost:.0f}" for row in rows(report)]
    columns = ("act", "stage", ">runs", ">by itself", ">one rerun", ">not", ">violations", ">seconds lost")
    show_table(columns, [(*row, seconds) for row, seconds in zip(counted, lost, strict=True)])
    whole = len(report.runs) - report.violations
    say(
        f"{report.place}, seed {report.seed}: {whole} of {plural(len(report.runs), 'run')} ended as if undisturbed, "
        f"bit for bit; an undisturbed one takes {report.undisturbed_seconds:.0f} s"
    )
    for run in report.runs:
        if run.violations:
            say(f"! {run.number}: {'; '.join(run.violations)}")
            again = f"--kills {run.number} --seed {report.seed} --only {run.number}"
            say(f"  repeat it: python -m tests.benchmarks.chaos {again}")
    for folder in report.kept:
        say(f"  {folder}")
