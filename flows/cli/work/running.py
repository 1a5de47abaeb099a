"""`millrace run`: check the plan, start a Prefect server if none runs, then run the flow in this process."""

import contextlib
import importlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from configs.load import load_config
from configs.schema.config import Config
from flows.cli.results import outputs
from flows.cli.results.outputs import DryRunOutput, RunOutput
from flows.cli.terminal.console import note
from flows.cli.terminal.progress_bars import display
from flows.cli.terminal.server_keeper import ServerKeeper
from infra import prefect_server
from infra.store.base import Store
from tasks.contracts.runs import RunState
from tasks.foundation.errors import CancelledError, CodeError, ServerError
from tasks.planning.next_run import plan_run
from tasks.planning.preflight import check_plan
from tasks.planning.start import next_start
from tasks.quality.expectations import check_arguments
from tasks.running import json_logs
from tasks.running.context import within
from tasks.runs import ledger, releases
from tasks.runs.plan import NothingToDo
from tasks.runs.run_report import RunReport


def dry_run(store: Store, span: str | None, config_file: Path | None, overrides: Sequence[str]) -> DryRunOutput:
    """Return the configuration and the plan; write nothing.

    Raises:
        StageError: as `load_config`, `plan_run` and `check_plan` do.
    """
    config = load_config(config_file, overrides)
    check_arguments(config.validate_.expectations)
    try:
        plan = plan_run(store, config, span)
        check_plan(store, plan)
        return DryRunOutput(config=config.tree(), plan=outputs.plan_output(plan), sentence="")
    except NothingToDo as error:
        return DryRunOutput(config=config.tree(), plan=None, sentence=str(error))


def run(store: Store, span: str | None, config_file: Path | None, overrides: Sequence[str], verbose: bool) -> RunOutput:
    """Run the pipeline. A refused model is a result; so is a lineage that has trained all spans.

    Raises:
        StageError: of the class that stopped the run.
    """
    try:
        config = load_config(config_file, overrides)
        check_plan(store, plan_run(store, config, span))  # what can't work needs no server
        done = run_flow(
            "pipeline", verbose, store.uri, span, str(config_file) if config_file else None, tuple(overrides)
        )
        report = done.value
        assert isinstance(report, RunReport)
    except NothingToDo as error:
        return RunOutput(state="NothingToDo", sentence=str(error), ui_url=None, run_url=None, report=None, stages=())
    if report.state == "Unfinished":
        raise CodeError(f"run {report.run_key} ended well, but with neither a release nor a rejection")
    attempts = tuple(ledger.records(store, report.run_key))
    return RunOutput(
        state=report.state,
        sentence=_sentence(store, config, report),
        ui_url=done.ui_url,
        run_url=done.run_url,
        report=report,
        stages=outputs.stage_lines(store, report.run_key, attempts, report.cached),
    )


def _sentence(store: Store, config: Config, report: RunReport) -> str:
    if report.state == RunState.REJECTED:
        return f"{report.why} {next_start(store, config)}"
    if report.state == RunState.HELD and (hold := releases.hold_of(store)) is not None:
        return f"{hold.sentence} Release {report.release} becomes current with the next run after: millrace hold --off"
    return ""


class FlowDone(NamedTuple):
    """What a flow returned, the address of the Prefect server, and that of the flow run's page, where its log is."""

    value: Any
    ui_url: str
    run_url: str


def run_flow(name: str, verbose: bool, *parameters: Any) -> FlowDone:
    """Start a Prefect server if none runs, and run the flow `name` of `flows/<name>.py` in this process.

    Raises:
        StageError: of the class that stopped the flow.
    """
    verbose = verbose or json_logs.enabled()
    server = prefect_server.up(prefect_server.state_home(), note)
    note(f"Prefect UI: {server.ui_url}{' (millrace up tells its password, millrace down stops it)' * server.started}")
    os.environ.update(prefect_server.client_environment(server))
    # The log is in the UI. Here its lines would break the bars, and show each error with two tracebacks.
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "INFO" if verbose else "CRITICAL"

    flow = getattr(importlib.import_module(f"flows.{name}"), name)
    keeper = ServerKeeper(server)
    with _explained(keeper, server.url), contextlib.ExitStack() as stack:
        stack.enter_context(within(keeper=keeper))
        if not verbose:
            stack.enter_context(within(listener=stack.enter_context(display())))
        state = flow(*parameters, return_state=True)
    url = f"{server.ui_url}/runs/flow-run/{state.state_details.flow_run_id}"
    if state.is_failed():
        note(f"log: {url}")
    if state.is_cancelled():
        raise CancelledError(state.message or "the flow run was cancelled")
    with _explained(keeper, server.url):
        return FlowDone(state.result(), server.ui_url, url)


@contextlib.contextmanager
def _explained(keeper: ServerKeeper, url: str) -> Iterator[None]:
    """Raise ServerError for the errors of Prefect's client: the server went away, lost the run, or answers with errors.

    What failed before that counts more.
    """
    import httpx  # after the environment is set, as Prefect itself
    from prefect.exceptions import ObjectNotFound

    from tasks.running.server_presence import server_error

    try:
        yield
    except httpx.HTTPError as error:
        raise keeper.error or server_error(error, url) from error
    except ObjectNotFound as error:
        raise ServerError(
            f"the Prefect server at {url} does not know this flow run: it lost its database, or another server got its "
            "address. What is finished is in the workspace: run the same command again"
        ) from error
