"""`millrace drain`: no deployed run starts, and the present ones end, before the orchestrator is replaced."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import httpx
import typer
from pydantic import Field

from flows.cli.terminal.command import command
from flows.cli.terminal.console import note
from flows.presentation.model import Parts
from infra import deployments, prefect_server
from tasks.foundation import clock
from tasks.foundation.errors import ConfigError, ServerError
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

LOOK_SECONDS = 2.0
_QUIET_LOOKS = 3  # a worker may have taken a run just before the pool was paused, which shows seconds later


class DrainOutput(Record):
    """`millrace drain`."""

    ui_url: str
    work_pool: str
    paused: bool = Field(description="true: no deployed run starts until `millrace drain --off`")
    ended: tuple[str, ...] = Field(description="flow runs that were waited for")


def drain_page(output: DrainOutput) -> Parts:
    """Yield the state of the work pool."""
    if not output.paused:
        yield f"work pool {output.work_pool} starts runs again"
        return
    waited = f"{plural(len(output.ended), 'run')} ended, and " if output.ended else ""
    yield f"{waited}no run of work pool {output.work_pool} is left; once its worker is back: millrace drain --off"


@command(drain_page)
def drain(
    off: Annotated[bool, typer.Option("--off", help="Let runs start again.")] = False,
) -> DrainOutput:
    """Let no deployed run start, and wait until the present ones ended: before an upgrade, or another machine."""
    server = prefect_server.running(prefect_server.state_home())
    if server is None:
        raise ServerError("no Prefect server runs here, and PREFECT_API_URL is not set: there is nothing to drain")
    os.environ.update(prefect_server.client_environment(server))
    from prefect.client.orchestration import get_client  # after the environment is set
    from prefect.client.schemas.actions import WorkPoolUpdate
    from prefect.exceptions import ObjectNotFound

    from tasks.running.server_presence import server_error

    pool = deployments.pool()
    try:
        with get_client(sync_client=True) as client:
            client.update_work_pool(pool, WorkPoolUpdate(is_paused=not off))
            ended = () if off else _wait(client, pool)
    except ObjectNotFound as error:
        raise ConfigError(f"{server.url} has no work pool {pool}, so nothing is deployed: millrace deploy") from error
    except httpx.HTTPError as error:
        raise server_error(error, server.url) from error
    return DrainOutput(ui_url=server.ui_url, work_pool=pool, paused=not off, ended=ended)


def _wait(client: SyncPrefectClient, pool: str) -> tuple[str, ...]:
    """Wait until no run of the pool has a process; return the names of all that had one."""
    seen: dict[str, str] = {}
    told, quiet = "", 0
    while quiet < _QUIET_LOOKS:
        active = _active(client, pool)
        seen |= active
        quiet = 0 if active else quiet + 1
        if active and (sentence := f"waits for {', '.join(active.values())}") != told:
            note(f"{sentence}; to end one: prefect flow-run cancel ID ({', '.join(active)})")
            told = sentence
        if quiet < _QUIET_LOOKS:
            clock.sleep(LOOK_SECONDS)
    return tuple(seen.values())


def _active(client: SyncPrefectClient, pool: str) -> dict[str, str]:
    """Return the names by id of the pool's flow runs that have a process, or get one; a suspended run has none."""
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
        WorkPoolFilter,
        WorkPoolFilterName,
    )
    from prefect.client.schemas.objects import StateType

    begun = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING, StateType.PAUSED]
    found = client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=begun))),
        work_pool_filter=WorkPoolFilter(name=WorkPoolFilterName(any_=[pool])),
    )
    return {str(run.id): run.name for run in found if run.state_name != "Suspended"}
