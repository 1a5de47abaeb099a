"""The objects of a simulated workspace, in memory, and the moments at which processes meet there."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from tests.simulation.orders import shared_record
from tests.simulation.scheduler import LONG_SECONDS, Scheduler

_READS = ("get", "read")  # of one object
Watch = Callable[[str, bytes | None], None]  # key, and its new content; None: it was deleted


class Stored(NamedTuple):
    """An object: its bytes, tag, metadata, and the time of its write in seconds since the begin."""

    data: bytes
    tag: str
    metadata: Mapping[str, str]
    at: float


class Objects:
    """The objects of a workspace. `watch` sees each change, in order."""

    def __init__(self) -> None:
        self.scheduler: Scheduler | None = None
        self.watch: Watch | None = None
        self.all_are_turns = True  # False: not the reads of what a process shares with none but a prune
        self.files: dict[str, Stored] = {}
        self._order: list[str] = []
        self._writes = 0

    def copy(self) -> Objects:
        """Return the same objects, apart: no turn and no watch."""
        other = Objects()
        other.files, other._order, other._writes = dict(self.files), list(self._order), self._writes
        return other

    @property
    def time(self) -> float:
        return self.scheduler.time if self.scheduler is not None else 0.0

    def turn(self, what: str, key: str) -> None:
        """End the turn of the process before a request."""
        if self.scheduler is not None and (self.all_are_turns or what not in _READS or shared_record(key)):
            self.scheduler.request(what, key)

    def wait(self, until: Callable[[], bool]) -> None:
        """End the turn; the next one comes once `until` is true."""
        if self.scheduler is not None:
            self.scheduler.sleep(LONG_SECONDS, until)

    def draws(self, share: float) -> bool:
        """Return True for this share of the requests of processes."""
        scheduler = self.scheduler
        return (
            share > 0.0 and scheduler is not None and scheduler.current is not None and scheduler.rng.random() < share
        )

    def put(self, key: str, data: bytes, tag: str = "", metadata: Mapping[str, str] | None = None) -> Stored:
        self._writes += 1
        if key not in self.files:
            bisect.insort(self._order, key)
        stored = self.files[key] = Stored(data, tag or f"{self._writes}", metadata or {}, self.time)
        if self.watch is not None:
            self.watch(key, data)
        return stored

    def remove(self, key: str) -> None:
        if self.files.pop(key, None) is not None:
            del self._order[bisect.bisect_left(self._order, key)]
            if self.watch is not None:
                self.watch(key, None)

    def below(self, prefix: str, after: str = "", most: int | None = None) -> list[str]:
        """Return the keys with a prefix, in order.

        Args:
            after: the key before the first one; empty: begin with the first of all.
            most: number of keys at most; None: all.
        """
        begin = bisect.bisect_right(self._order, after) if after else bisect.bisect_left(self._order, prefix)
        end = bisect.bisect_left(self._order, prefix + "\U0010ffff")
        return self._order[begin : end if most is None else min(end, begin + most)]


class InlineExecutor:
    """A thread pool that does its work at once: the scheduler knows all threads of a simulated process."""

    def __init__(self, *_: object, **__: object) -> None: ...
    def __enter__(self) -> InlineExecutor:
        return self

    def __exit__(self, *_: object) -> None: ...
    def shutdown(self, **_: object) -> None: ...

    def map(self, do: Callable[..., Any], *items: Any) -> Iterator[Any]:
        return iter([do(*each) for each in zip(*items, strict=False)])

    def submit(self, do: Callable[..., Any], *given: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(do(*given))
        return done
