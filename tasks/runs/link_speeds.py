"""How fast collectives were between machines of one kind, in so many of them: what later health checks are held to.

Published figures are of other tools and other sizes; only the pipeline's own runs say what is usual.
"""

from __future__ import annotations

import contextlib
import statistics
from typing import Literal
from urllib.parse import quote

from infra.store.base import Conflict, Store
from infra.store.records import find_with_bytes
from tasks.foundation.records import Record

PREFIX = "hosts/speeds"
ENOUGH = 5  # runs, until they say what is usual
KEPT = 20
OF_USUAL = 0.5  # a bandwidth below this share of the median is too low, and a latency above median / share too high
LATENCY = "all_reduce_latency_us"
_WAY_OUT = "delete it, and health learns the speeds again"


class LinkSpeeds(Record):
    """`hosts/speeds/<machine>-<nodes>.json`: rates by name, of the newest healthy runs, the newest last."""

    version: Literal[1] = 1
    machine: str
    nodes: int
    runs: tuple[dict[str, float], ...] = ()

    @property
    def limits(self) -> dict[str, float] | None:
        """The worst that counts as healthy, by name: bus bandwidths in GB/s, a latency in microseconds.

        None while there are too few runs.
        """
        if len(self.runs) < ENOUGH:
            return None
        shared = set.intersection(*(set(run) for run in self.runs))
        usual = {name: statistics.median(run[name] for run in self.runs) for name in sorted(shared)}
        return {
            name: round(value / OF_USUAL if name == LATENCY else value * OF_USUAL, 3)
            for name, value in usual.items()
            if name == LATENCY or name.endswith("_bus_gb_s")
        }


def read_speeds(store: Store, machine: str, nodes: int) -> LinkSpeeds:
    """Return what is known; no run if nothing is. Raises StoreError: the record is not readable."""
    _, record = find_with_bytes(store, _key(machine, nodes), LinkSpeeds, _WAY_OUT)
    return record or LinkSpeeds(machine=machine, nodes=nodes)


def remember_speeds(store: Store, machine: str, nodes: int, rates: dict[str, float]) -> None:
    """Add the rates of a healthy run; if another run writes at the same moment, these are left out.

    Raises:
        StoreError: the record is not readable.
    """
    raw, record = find_with_bytes(store, _key(machine, nodes), LinkSpeeds, _WAY_OUT)
    record = record or LinkSpeeds(machine=machine, nodes=nodes)
    added = record.model_copy(update={"runs": (*record.runs, rates)[-KEPT:]})
    with contextlib.suppress(Conflict):
        store.swap(_key(machine, nodes), added.to_json(), expected=raw)


def _key(machine: str, nodes: int) -> str:
    return f"{PREFIX}/{quote(machine, safe='')}-{nodes}.json"
