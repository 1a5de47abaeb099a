"""`millrace doctor`: each finding a line, with what to do about it below."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.text import Text

from tasks.doctor import DoctorReport

_STYLES = {"ok": "green", "warn": "yellow", "FAIL": "bold red"}


def show(report: DoctorReport) -> None:
    """As people read it."""
    console = Console(width=None if sys.stdout.isatty() else 160, highlight=False, soft_wrap=True)
    width = max(len(finding.name) for finding in report.findings)
    for finding in report.findings:
        line = Text(f"{finding.outcome:<4}", style=_STYLES[finding.outcome])
        console.print(line.append(f"  {finding.name:<{width}}  {finding.found}", style="default not bold"))
        if finding.mend:
            console.print(Text(f"{'':<{width + 8}}-> {finding.mend}"))
    if report.failed:
        console.print(f"{report.failed} of {len(report.findings)} checks failed")
    else:
        console.print(f"nothing failed{f', {report.warned} to look at' * bool(report.warned)}")
