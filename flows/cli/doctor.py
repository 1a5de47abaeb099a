"""`millrace doctor`: one line for each finding, with its remedy below."""

import os
from pathlib import PurePath
from typing import Annotated

import typer

from configs.load import load_config
from flows.cli.terminal.command import command
from flows.cli.terminal.options import HERE
from flows.cli.terminal.progress_bars import display
from flows.presentation.model import Cell, Parts
from infra.store.factory import open_store
from tasks.doctor.checks import Finding
from tasks.doctor.examine import DoctorReport, examine
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.running.context import override_context

_NEEDED = ("configuration", "workspace", "store")  # without these no deep check can begin
_MOODS = {"ok": "good", "warn": "refused", "FAIL": "bad"}


def doctor_page(report: DoctorReport) -> Parts:
    """Yield a line for each finding, with its remedy below, and their sum."""
    width = max(len(finding.name) for finding in report.findings)
    for finding in report.findings:
        found = f" {finding.name:<{width}}  {finding.found}"
        yield Cell(found, f"{finding.outcome:<4}", _MOODS[finding.outcome])
        if finding.mend:
            yield f"{'':<{width + 8}}-> {finding.mend}"
    if report.failed:
        yield f"{report.failed} of {len(report.findings)} checks failed"
    else:
        yield f"nothing failed{f', {report.warned} to look at' * bool(report.warned)}"


def _exit_code(report: DoctorReport) -> int:
    failures = [finding.failure or FailureClass.CONFIG for finding in report.findings if finding.outcome == "FAIL"]
    return POLICIES[failures[-1]].exit_code if failures else 0  # the deep checks are the last


@command(doctor_page, exit_code=_exit_code)
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
