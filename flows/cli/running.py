"""`millrace run`: look before anything starts, make sure of a Prefect server, then run the flow in this process."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from configs.load import load_config
from flows.cli import outputs
from flows.cli.outputs import DryRunOutput, RunOutput
from flows.console import display
from infra import prefect_server
from infra.store import Store
from tasks import ledger
from tasks.errors import CodeError
from tasks.plan import NothingToDo, plan_run
from tasks.report import RunReport


def dry_run(store: Store, span: str | None, place: Path | None, overrides: Sequence[str]) -> DryRunOutput:
    """The resolved configuration and the plan; writes nothing.

    Raises:
        StageError: as `load_config` and `plan_run` do.
    """
    config = load_config(place, overrides)
    shown = outputs.config_output(config)
    try:
        return DryRunOutput(config=shown, plan=outputs.plan_output(plan_run(store, config, span)), sentence="")
    except NothingToDo as error:
        return DryRunOutput(config=shown, plan=None, sentence=str(error))


def run(store: Store, span: str | None, place: Path | None, overrides: Sequence[str], verbose: bool) -> RunOutput:
    """Run the pipeline; a refused model and a lineage that has seen all spans are results too.

    Raises:
        StageError: of the class that stopped the run.
    """
    try:
        plan_run(store, load_config(place, overrides), span)  # what can't be planned needs no server
        server = prefect_server.up(prefect_server.state_home(), _say)
        _say(f"Prefect UI: {server.ui_url}{' (millrace down stops it)' * server.started}")
        report, url = _run_flow(server, verbose, store.uri, span, str(place) if place else None, tuple(overrides))
    except NothingToDo as error:
        return RunOutput(state="NothingToDo", sentence=str(error), ui_url=None, run_url=None, report=None, stages=())
    if report.state == "Unfinished":
        raise CodeError(f"run {report.run_key} ended well, but with neither a release nor a rejection")
    attempts = tuple(ledger.records(store, report.run_key))
    return RunOutput(
        state=report.state,
        sentence=report.why if report.state == "Rejected" else "",
        ui_url=server.ui_url,
        run_url=url,
        report=report,
        stages=outputs.stage_lines(store, report.run_key, attempts, report.cached),
    )


def _run_flow(server: prefect_server.Server, verbose: bool, *parameters: Any) -> tuple[RunReport, str]:
    """The flow's report, and the address of the flow run's page, where its log is."""
    os.environ.update(prefect_server.client_environment(server))
    # The log is in the UI. Here its lines would run through the bars, and tell each error with two tracebacks.
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "INFO" if verbose else "CRITICAL"

    from flows.pipeline import pipeline  # not before the environment is set: Prefect reads it when imported
    from tasks.stage import listening

    if verbose:
        state = pipeline(*parameters, return_state=True)
    else:
        with display() as listener, listening(listener):
            state = pipeline(*parameters, return_state=True)
    url = f"{server.ui_url}/runs/flow-run/{state.state_details.flow_run_id}"
    if state.is_failed():
        _say(f"log: {url}")
    report = state.result()
    assert isinstance(report, RunReport)
    return report, url


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
