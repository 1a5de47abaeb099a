"""A flow run in this process: its Prefect server (started if none runs), its progress, its errors."""

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

from flows.cli.terminal.console import note
from flows.cli.terminal.ending import explain, leave_soon
from flows.cli.terminal.progress_bars import display
from infra import prefect_server
from infra.prefect_server import Server
from tasks.foundation.errors import CancelledError, ServerError
from tasks.running import json_logs
from tasks.running.context import override_context


class ServerKeeper:
    """Starts the server again if this project runs it, and ends the command if it stays away."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.error: Exception | None = None  # the command's error after the server stayed away

    def restart(self, seconds: float) -> None:
        """Start it again, on its port. Raises HostError: it did not answer within `seconds`."""
        if self._server.pid is not None:
            prefect_server.restart(self._server, seconds)

    def give_up(self, error: Exception) -> None:
        """End the process soon with this error, even if Prefect still retries."""
        self.error = error
        leave_soon(lambda: explain(error))


class FlowDone(NamedTuple):
    """A flow's result, the address of the Prefect server, and the address of the flow run's page with its log."""

    value: Any
    ui_url: str
    run_url: str


def run_flow(name: str, verbose: bool, *parameters: Any) -> FlowDone:
    """Start a Prefect server if none runs, and run a flow in this process: `refresh` is in flows/refresh.py.

    Raises:
        StageError: of the class that stopped the flow.
    """
    verbose = verbose or json_logs.json_enabled()
    server = prefect_server.up(prefect_server.state_home(), note)
    note(f"Prefect UI: {server.ui_url}{' (millrace up tells its password, millrace down stops it)' * server.started}")
    os.environ.update(prefect_server.client_environment(server))
    # The log is in the UI. Here its lines would break the bars, and show each error with two tracebacks.
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "INFO" if verbose else "CRITICAL"

    flow = getattr(importlib.import_module(f"flows.{name}"), name.rpartition(".")[2])
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings  # after the environment is set

    keeper = ServerKeeper(server)
    with _explained(keeper, server.url), contextlib.ExitStack() as stack:
        # A flow's end waits up to a second for the thread that sends Prefect's heartbeats. The workspace's own
        # heartbeats tell that a run is lost.
        stack.enter_context(temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}))
        stack.enter_context(override_context(keeper=keeper))
        if not verbose:
            stack.enter_context(override_context(listener=stack.enter_context(display())))
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
    """Translate errors of Prefect's client to ServerError: no server, a server that lost the run, or an error response.

    An error that the server's keeper gave up with comes first.
    """
    import httpx  # after the environment is set, as Prefect itself
    from prefect.exceptions import ObjectNotFound

    from tasks.running.server_presence import server_error

    try:
        yield
    except httpx.HTTPError as error:
        raise keeper.error or server_error(error, url) from error
    except RuntimeError as error:
        # Before its first request Prefect compares versions, and puts a server that went away into a cause.
        if not isinstance(error.__cause__, httpx.HTTPError):
            raise
        raise keeper.error or server_error(error.__cause__, url) from error
    except ObjectNotFound as error:
        raise ServerError(
            f"the Prefect server at {url} does not know this flow run: it lost its database, or another server got its "
            "address. What is finished is in the workspace: run the same command again"
        ) from error
