"""`millrace rollback`: the pointer moved, announced where a Prefect server runs, and followed by the targets."""

import logging
import os

from pydantic import Field

import tasks.runs.releases
import tasks.runs.rollback
from flows.cli.results import publishing
from flows.cli.terminal.console import note
from flows.cli.terminal.run_options import RunOptions
from infra import prefect_password, prefect_server
from infra.store.base import Store
from tasks.contracts.runs import Hold, Release
from tasks.foundation.errors import HostError, StoreError
from tasks.foundation.records import Record
from tasks.runs.served_targets import Served

log = logging.getLogger("millrace")


class RollbackOutput(Record):
    """`millrace rollback`: the release that is current now, and the one that was."""

    before: Release | None = Field(description="the release that was current before; null: not known")
    release: Release = Field(description="the release that is current now")
    hold: Hold | None = Field(description="null: the next run or refresh may change what serves")
    targets: tuple[Served, ...] = Field(description="what each target serves now, that a release was published to")


def rollback(options: RunOptions, to: int | None, verify: bool) -> RollbackOutput:
    """Go back to release `to`, by default to the model before, announce it, then let the targets serve it.

    Raises:
        StageError: as `tasks.runs.rollback.rollback`, or of the class of the first target that failed.
    """
    store = options.store
    options.config()  # before anything changes
    try:
        serving = tasks.runs.releases.current(store)
    except StoreError:  # what a rollback is there to repair
        serving = None
    release = tasks.runs.rollback.rollback(store, to, verify)
    _announce(store, release, serving)
    hold = tasks.runs.releases.hold_of(store)
    return RollbackOutput(before=serving, release=release, hold=hold, targets=publishing.follow(options, release))


def _announce(store: Store, release: Release, before: Release | None) -> None:
    try:
        server = prefect_server.running(prefect_server.state_home())
    except HostError as error:
        note(f"the rollback is not announced: {error}")
        return
    if server is None:
        log.debug("the rollback is not announced: no Prefect server runs here")
        return
    # Before Prefect is imported. Its own log would show each warning of a target twice.
    os.environ.update(prefect_server.client_environment(server))
    os.environ["PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL"] = "CRITICAL"
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings

    from flows.running.announcing import announce_rollback

    password = os.environ.get(prefect_password.OF_CLIENT)
    # Also where Prefect was imported before.
    with temporary_settings({PREFECT_API_URL: server.url, PREFECT_API_AUTH_STRING: password}):
        announce_rollback(store, release, before)
