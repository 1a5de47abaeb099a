"""`millrace rollback`: the pointer moved, then announced where a Prefect server runs; none is started for that."""

import logging
import os

import tasks.runs.releases
from flows.cli.results.outputs import RollbackOutput
from flows.cli.terminal.console import note
from infra import prefect_server
from infra.store.base import Store
from tasks.foundation.errors import HostError, StoreError

log = logging.getLogger("millrace")


def rollback(store: Store, to: int | None, verify: bool) -> RollbackOutput:
    """Go back to release `to`, by default to the one before. Raises as `tasks.runs.releases.rollback` does."""
    try:
        serving = tasks.runs.releases.current(store)
    except StoreError:  # what a rollback is there to repair
        serving = None
    release = tasks.runs.releases.rollback(store, to, verify)
    return RollbackOutput(previous=serving.number if serving else None, release=release)


def announce(store: Store, output: RollbackOutput) -> None:
    """Send the event of a rollback that was done."""
    try:
        server = prefect_server.running(prefect_server.state_home())
    except HostError as error:
        note(f"the rollback is not announced: {error}")
        return
    if server is None:
        log.debug("the rollback is not announced: no Prefect server runs here")
        return
    os.environ.update(prefect_server.client_environment(server))  # before Prefect is imported
    from flows.running.announcing import announce_rollback

    announce_rollback(store, output.release, output.previous)
