"""Records of the hosts that ran work: strikes, exclusions of hosts that get no work for a while, health findings.

Hosts are in the workspace under `hosts/`, one record each, and expire by themselves. Only hosts of a cluster have
one; a laptop has none. Findings are of an attempt whose hosts were refused; a healthy attempt has its checks in the
stage's result.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import socket
import time
from collections.abc import Callable, Sequence
from typing import Literal
from urllib.parse import quote

from pydantic import Field

from configs.schema.stages import HealthConfig
from infra.store.base import Conflict, Store
from infra.store.records import find_record, find_with_bytes, read_record
from tasks.contracts.kinds import OfAttempt
from tasks.contracts.outcomes import Check
from tasks.contracts.workspace import FINDINGS, HOST_RECORD
from tasks.foundation.errors import ConfigError, StoreError
from tasks.foundation.records import Record
from tasks.runs.ledger import LedgerRecord

HOST = "MILLRACE_HOST"  # set by the launcher: the name of this host in its cluster
_WAY_OUT = "delete it to forget the host"
_ROUNDS = 20  # compare-and-swap attempts


class Strike(Record):
    """One suspicion, or the finding that an exclusion is for. Times are seconds since the epoch."""

    at: float
    until: float = Field(description="when it counts no more")
    run_key: str
    reason: str


class HostRecord(Record):
    """`hosts/<host>.json`."""

    version: Literal[1] = 1
    host: str
    strikes: tuple[Strike, ...] = ()
    exclusion: Strike | None = Field(default=None, description="no work goes there until it expires")

    def live(self, now: float) -> HostRecord:
        """Return the record without expired strikes and exclusions."""
        exclusion = self.exclusion if self.exclusion and self.exclusion.until > now else None
        strikes = tuple(strike for strike in self.strikes if strike.until > now)
        return self.model_copy(update={"strikes": strikes, "exclusion": exclusion})


def this_host() -> str:
    """Return the name of this host, as findings have it."""
    return os.environ.get(HOST) or socket.gethostname()


def handed_out() -> bool:
    """Return True if this host belongs to a cluster, so that work can go to another host."""
    return bool(os.environ.get(HOST))


def strike(store: Store, host: str, reason: str, run_key: str, limits: HealthConfig, now: float) -> HostRecord:
    """Record a suspicion; with `limits.strikes` of them that have not expired, the host is excluded.

    Raises:
        StoreError: the host's record is not readable, or other processes write it all the time.
    """
    new = _made(reason, run_key, limits, now)

    def add(record: HostRecord) -> HostRecord:
        strikes = (*record.strikes, new)
        exclusion = record.exclusion
        if len(strikes) >= limits.strikes and exclusion is None:
            why = f"{len(strikes)} strikes in {limits.exclude_hours:g} h, the last: {reason}"
            exclusion = new.model_copy(update={"reason": why})
        return record.model_copy(update={"strikes": strikes, "exclusion": exclusion})

    return _update(store, host, now, add)


def exclude(store: Store, host: str, reason: str, run_key: str, limits: HealthConfig, now: float) -> HostRecord:
    """Give no work to a host for `limits.exclude_hours` from now. Raises as `strike`."""
    exclusion = _made(reason, run_key, limits, now)
    return _update(store, host, now, lambda record: record.model_copy(update={"exclusion": exclusion}))


def excluded(store: Store, host: str, now: float) -> str | None:
    """Return the reason and end of a host's exclusion, in one sentence; None if it is not excluded.

    Raises:
        StoreError: its record is not readable.
    """
    record, _ = _read(store, host)
    exclusion = record.live(now).exclusion
    if exclusion is None:
        return None
    return (
        f"host {host} is excluded until {_when(exclusion.until)}, by run {exclusion.run_key}: {exclusion.reason}. "
        f"If it is repaired: millrace hosts --forgive {host}"
    )


def given_up(store: Store, host: str, since: float) -> str | None:
    """Return the reason to retry on another host (excluded, or a strike after `since`); None if not needed.

    Args:
        since: seconds since the epoch.

    Raises:
        StoreError: its record is not readable.
    """
    if (why := excluded(store, host, time.time())) is not None:
        return why
    record, _ = _read(store, host)
    last = max(record.strikes, key=lambda strike: strike.at, default=None)
    return last.reason if last is not None and last.at >= since else None


def known_hosts(store: Store) -> tuple[HostRecord, ...]:
    """Return all records by name, expired or not. Raises StoreError for one that is not readable."""
    keys = (key for key in store.list(HOST_RECORD.within()) if HOST_RECORD.match(key))
    return tuple(read_record(store, key, HostRecord, _WAY_OUT) for key in keys)


def forgive(store: Store, host: str) -> None:
    """Delete the record of a host. Raises ConfigError: it has no record."""
    key = _key(host)
    if not store.exists(key):
        known = ", ".join(record.host for record in known_hosts(store)) or "none"
        raise ConfigError(f"host {host!r} has no record in {store.uri}/{HOST_RECORD.within()}; there are: {known}")
    store.delete(key)


def _made(reason: str, run_key: str, limits: HealthConfig, now: float) -> Strike:
    return Strike(at=now, until=now + limits.exclude_hours * 3600, run_key=run_key, reason=reason)


def _update(store: Store, host: str, now: float, change: Callable[[HostRecord], HostRecord]) -> HostRecord:
    for _ in range(_ROUNDS):
        record, raw = _read(store, host)
        changed = change(record.live(now))
        with contextlib.suppress(Conflict):  # another process wrote first: add to that
            store.swap(_key(host), changed.to_json(), expected=raw)
            return changed
    raise StoreError(f"{store.uri}/{_key(host)} was changed by others {_ROUNDS} times in a row; is a loop writing it?")


def _read(store: Store, host: str) -> tuple[HostRecord, bytes | None]:
    raw, record = find_with_bytes(store, _key(host), HostRecord, _WAY_OUT)
    return record or HostRecord(host=host), raw


def _key(host: str) -> str:
    return HOST_RECORD.key(host=quote(host, safe=""))  # a name with a slash would be a folder


def _when(seconds: float) -> str:
    return f"{dt.datetime.fromtimestamp(seconds, dt.UTC):%Y-%m-%d %H:%M} UTC"


class Findings(Record):
    """`findings.json` of an attempt: all checks of all its workers, passed ones too."""

    version: Literal[1] = 1
    checks: tuple[Check, ...]


def read_findings(store: Store, work: OfAttempt) -> Findings | None:
    """Return the findings of an attempt; None if it was not refused.

    Raises:
        StoreError: the file is damaged; names it.
    """
    return find_record(store, FINDINGS.of(work), Findings)


def last_findings(store: Store, attempts: Sequence[LedgerRecord]) -> tuple[Check, ...]:
    """Return the checks of the last attempt that was refused; empty if none was. Raises as `read_findings`."""
    for record in sorted(attempts, key=lambda record: record.attempt, reverse=True):
        if (findings := read_findings(store, record)) is not None:
            return findings.checks
    return ()


def with_verdict(check: Check) -> str:
    """Return the sentence of a check, with the action that follows from it and the host."""
    if check.passed or check.action == "proceed":
        return check.sentence
    return f"{check.sentence} [{check.action}{f': {check.host}' if check.host else ''}]"
