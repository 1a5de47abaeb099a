"""`millrace doctor`: one line for each finding, and below it what to do."""

from collections.abc import Iterator

from rich.text import Text

from flows.cli.terminal import console
from flows.presentation.wording import visible
from tasks.upkeep.examine import DoctorReport

_STYLES = {"ok": "green", "warn": "yellow", "FAIL": "bold red"}


def show(report: DoctorReport) -> None:
    """Print the output for people."""
    console.show(_lines(report), soft_wrap=True)
    if report.failed:
        console.say(f"{report.failed} of {len(report.findings)} checks failed")
    else:
        console.say(f"nothing failed{f', {report.warned} to look at' * bool(report.warned)}")


def _lines(report: DoctorReport) -> Iterator[Text]:
    width = max(len(finding.name) for finding in report.findings)
    for finding in report.findings:
        line = Text(f"{finding.outcome:<4}", style=_STYLES[finding.outcome])
        yield line.append(f"  {finding.name:<{width}}  {visible(finding.found)}", style="default not bold")
        if finding.mend:
            yield Text(f"{'':<{width + 8}}-> {visible(finding.mend)}")
