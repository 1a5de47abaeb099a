"""The watch's problems and its alerts: who gets them, and what may never come twice."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import httpx

from flows.orchestration.events import Event
from flows.orchestration.watch_findings import RESOLVED, send_problems
from tasks.foundation.clock import now
from tests.simulation.objects import Objects

LEAST_HOURS_BETWEEN = 18.0  # two alerts of one problem: it reminds after 23, and clocks jump by two hours each way
_LONGEST_HOURS = 60  # that a problem stands
AWAY = 0.05  # share of the alerts that the server does not accept


class Alerts:
    """The problems of a workspace, which come and go by the hour, and the server that gets their events.

    Args:
        fail: is called with a broken promise.
    """

    def __init__(self, objects: Objects, rng: random.Random, fail: Callable[[str], None]) -> None:
        self._objects, self._rng, self._fail, self.away = objects, rng, fail, AWAY
        self._stand_until = {"stale": 0, "missed-2027-W01-v1": 0}  # problem -> the hour in which it is over
        self._got: dict[tuple[str, str, str], float] = {}  # problem, event, and which -> when it came first
        self._last: dict[str, tuple[int, float]] = {}  # problem -> how often it began, and its newest alert

    def hour(self, hour: int) -> list[Event]:
        """Return the problems that stand in an hour."""
        for what, until in self._stand_until.items():
            if until < hour - 1 and self._rng.random() < 0.02:
                self._stand_until[what] = hour + self._rng.randrange(1, _LONGEST_HOURS)
        return [_event(what) for what, until in self._stand_until.items() if hour < until]

    def deliver(self, store: Any, event: Event, sentence: str, which: str, **more: Any) -> None:
        """Take an event, as `flows.orchestration.events.deliver` sends it: the server takes two with one id for one."""
        self._objects.turn("post", "events")
        if self._rng.random() < self.away:
            raise httpx.ConnectError("a simulated server is away")
        key = event.what, event.event, which
        if key in self._got:
            return
        at = self._got[key] = self._objects.time
        if event.event == RESOLVED:
            return
        times, (before, last) = int(which.split()[0]), self._last.get(event.what, (0, 0.0))
        if times != before and before and (event.what, RESOLVED, f"{before}") not in self._got:
            self._fail(f"{event.what} was reported as new for the {times}. time, and its end before never was")
        if times == before and at - last < LEAST_HOURS_BETWEEN * 3600:
            self._fail(f"{event.what} was reported twice within {(at - last) / 3600:.1f} hours")
        self._last[event.what] = times, at

    def all_are_over(self) -> bool:
        """Return True if each problem that was reported was reported as over."""
        return all((what, RESOLVED, f"{times}") in self._got for what, (times, _) in self._last.items())


def watch(store: Any, found: list[Event]) -> None:
    """Send what the hourly watch found, as `flows/watch.py`."""
    send_problems(store, "main", now(), found, (), ())


def _event(what: str) -> Event:
    return Event(
        what=what, event=f"millrace.{what.partition('-')[0]}", lineage="main", severity="warning",
        resource={"prefect.resource.id": what}, sentence=f"{what} stands.", payload={},
    )  # fmt: skip
