"""`millrace doctor`: one line for each finding, with its remedy below."""

import os
from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated

import typer
from rich.text import Text

from configs.load import load_config
from flows.cli.terminal import console
from flows.cli.terminal.command import command
from flows.cli.terminal.options import HERE
from flows.cli.terminal.progress_bars import display
from flows.presentation.wording import visible
from infra.store.factory import open_store
from tasks.doctor.checks import Finding
from tasks.doctor.examine import DoctorReport, examine
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.running.context import override_context

_NEEDED = ("configuration", "workspace", "store")  # without these no deep check can begin
_STYLES = {"ok": "green", "warn": "yellow", "FAIL": "bold red"}


def show(report: DoctorReport) -> None:
    """Print the output for people."""
    console.show(_lines(report), soft_wrap=True)
    if report.failed:
        console.say(f"{report.failed} of {len(report.findings)} checks failed")
    else:
        console.say(f"nothing failed{f', {report.warned} to look at' * bool(report.warned)}")


def _exit_code(report: DoctorReport) -> int:
    failures = [finding.failure or FailureClass.CONFIG for finding in report.findings if finding.outcome == "FAIL"]
    return POLICIES[failures[-1]].exit_code if failures else 0  # the deep checks are the last


@command(show, exit_code=_exit_code)
def doctor(
    deep: Annotated[
        bool,
        typer.Option(
            "--deep", help="Also test devices, network, compiler and training with small jobs, which take a while."
        ),
    ] = False,
    workspace: str = HERE,
    config_file: PurePath | None = None,
    settings: list[str] | None = None,
) -> DoctorReport:  # a workspace that can't be opened is a finding
    """Check everything that a run needs, and say how to fix each problem."""
    if deep:
        os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"  # progress shows here
    report = examine(workspace, config_file, settings or [], new=deep)
    if not deep or any(finding.name in _NEEDED and finding.outcome == "FAIL" for finding in report.findings):
        return report
    from tasks.doctor.deep import deep_findings  # only now: Prefect reads the environment when imported

    found: list[Finding] = []
    with display() as listener, override_context(listener=listener):
        for finding in deep_findings(open_store(workspace), load_config(config_file, settings or [])):
            listener.say(f"{finding.outcome:<4}  {finding.name}")
            found.append(finding)
    return DoctorReport.of((*report.findings, *found))


def _lines(report: DoctorReport) -> Iterator[Text]:
    width = max(len(finding.name) for finding in report.findings)
    for finding in report.findings:
        line = Text(f"{finding.outcome:<4}", style=_STYLES[finding.outcome])
        yield line.append(f"  {finding.name:<{width}}  {visible(finding.found)}", style="default not bold")
        if finding.mend:
            yield Text(f"{'':<{width + 8}}-> {visible(finding.mend)}")
