"""`millrace doctor`: one line for each finding, and below it what to do."""

from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from flows.cli.terminal import console
from flows.cli.terminal.command import HERE, command
from flows.presentation.wording import visible
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.upkeep.examine import DoctorReport, examine

_STYLES = {"ok": "green", "warn": "yellow", "FAIL": "bold red"}


def show(report: DoctorReport) -> None:
    """Print the output for people."""
    console.show(_lines(report), soft_wrap=True)
    if report.failed:
        console.say(f"{report.failed} of {len(report.findings)} checks failed")
    else:
        console.say(f"nothing failed{f', {report.warned} to look at' * bool(report.warned)}")


def _exit_code(report: DoctorReport) -> int:
    return POLICIES[FailureClass.CONFIG].exit_code if report.failed else 0


@command(show, exit_code=_exit_code)
def doctor(
    workspace: str = HERE, config_file: Path | None = None, settings: list[str] | None = None
) -> DoctorReport:  # a workspace that can't be opened is a finding
    """Check everything that a run needs, and say how to fix what is wrong."""
    return examine(workspace, config_file, settings or [])


def _lines(report: DoctorReport) -> Iterator[Text]:
    width = max(len(finding.name) for finding in report.findings)
    for finding in report.findings:
        line = Text(f"{finding.outcome:<4}", style=_STYLES[finding.outcome])
        yield line.append(f"  {finding.name:<{width}}  {visible(finding.found)}", style="default not bold")
        if finding.mend:
            yield Text(f"{'':<{width + 8}}-> {visible(finding.mend)}")
