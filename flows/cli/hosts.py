"""`millrace hosts`: what is remembered of machines, and the pardon of one that was repaired."""

from __future__ import annotations

import datetime as dt
import sys
import time
from typing import Literal

from pydantic import Field
from rich.console import Console
from rich.table import Table

import tasks.hosts
from infra.store import Store
from tasks.hosts import HostRecord, Strike
from tasks.records import Record


class StrikeLine(Record):
    at: str
    run_key: str
    reason: str


class HostLine(Record):
    """One machine of which something is remembered that has not expired."""

    host: str
    state: Literal["suspected", "excluded"]
    until: str = Field(description="when the exclusion, or the last strike, expires")
    reason: str = Field(description="of the exclusion, or of the last strike")
    run_key: str = Field(description="the run that found it")
    strikes: tuple[StrikeLine, ...]


class HostsOutput(Record):
    """`millrace hosts`."""

    forgiven: str | None = Field(description="the host that was forgiven now")
    hosts: tuple[HostLine, ...]


def hosts(store: Store, forgiven: str | None) -> HostsOutput:
    """All that is remembered, after `forgiven`, if one is named, was forgotten.

    Raises:
        ConfigError: nothing is on record about that one.
        StoreError: a record is not readable.
    """
    if forgiven is not None:
        tasks.hosts.forgive(store, forgiven)
    now = time.time()
    live = (record.live(now) for record in tasks.hosts.known_hosts(store))
    return HostsOutput(forgiven=forgiven, hosts=tuple(line for record in live if (line := _line(record)) is not None))


def show(output: HostsOutput) -> None:
    """As people read it."""
    console = Console(width=None if sys.stdout.isatty() else 160)
    if output.forgiven is not None:
        console.print(f"forgiven: {output.forgiven}", highlight=False, markup=False)
    if not output.hosts:
        console.print("no host is excluded or suspected", highlight=False)
        return
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("host", "", "strikes", "until", "run", "why"):
        table.add_column(heading, overflow="fold")
    for host in output.hosts:
        until = host.until[:16].replace("T", " ")
        table.add_row(host.host, host.state, str(len(host.strikes)), until, host.run_key, host.reason)
    console.print(table, markup=False)


def _line(record: HostRecord) -> HostLine | None:
    """None where all has expired."""
    latest = record.exclusion or max(record.strikes, key=lambda strike: strike.until, default=None)
    if latest is None:
        return None
    return HostLine(
        host=record.host,
        state="excluded" if record.exclusion else "suspected",
        until=_iso(latest.until),
        reason=latest.reason,
        run_key=latest.run_key,
        strikes=tuple(map(_strike, record.strikes)),
    )


def _strike(strike: Strike) -> StrikeLine:
    return StrikeLine(at=_iso(strike.at), run_key=strike.run_key, reason=strike.reason)


def _iso(seconds: float) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).isoformat()
