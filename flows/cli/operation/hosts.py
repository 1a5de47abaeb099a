"""`millrace hosts`: hosts that are excluded or suspected; and how one is forgiven after a repair."""

import datetime as dt
import time
from typing import Literal

from pydantic import Field

import tasks.runs.host_records
from flows.cli.terminal.console import say, show_table
from flows.presentation.wording import moment
from infra.store.base import Store
from tasks.foundation.records import Record
from tasks.runs.host_records import HostRecord, Strike


class StrikeLine(Record):
    at: str
    run_key: str
    reason: str


class HostLine(Record):
    """One host that is excluded or suspected now."""

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
    """Return all hosts that are excluded or suspected, after forgetting the record of `forgiven`.

    Raises:
        ConfigError: the host `forgiven` has no record.
        StoreError: a record is not readable.
    """
    if forgiven is not None:
        tasks.runs.host_records.forgive(store, forgiven)
    now = time.time()
    live = (record.live(now) for record in tasks.runs.host_records.known_hosts(store))
    return HostsOutput(forgiven=forgiven, hosts=tuple(line for record in live if (line := _line(record)) is not None))


def show(output: HostsOutput) -> None:
    """Print the output for people."""
    if output.forgiven is not None:
        say(f"forgiven: {output.forgiven}")
    if not output.hosts:
        say("no host is excluded or suspected")
        return
    rows = [(h.host, h.state, str(len(h.strikes)), moment(h.until), h.run_key, h.reason) for h in output.hosts]
    show_table(("host", "state", ">strikes", "until", "run", "~why"), rows)


def _line(record: HostRecord) -> HostLine | None:
    """Return None if all its records have expired."""
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
