"""Orders of turns: who is next, and who stands still in the middle of its work.

A fair order mixes all processes and a ranked one lets one run ahead for a while. The third looks for races: one process
runs alone until the others come in between two of its requests to records that they share. That is probabilistic
concurrency testing (Burckhardt et al., "A Randomized Scheduler with Probabilistic Guarantees of Finding Bugs", 2010,
section 2): random priorities, and few points at which one changes. Here the points are requests to shared records, and
a process may stand still there, so that its locks end.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.simulation.scheduler import Process, Strand

WRITES = frozenset(
    ("put if", "put", "del if", "delete", "copy", "link", "rename", "compare", "unlink", "move")
)  # a compare is a swap's look and its write
UNTIL_THE_OTHERS_ENDED = float("inf")
_REQUESTS = 40  # to shared records that a command sends at most before the last point; few send more
_REQUESTS_OF_PRUNE = 120
_WRITES = 12
_PAUSES_SECONDS = (70.0, 200.0)  # a lease lives for 60


class Point(NamedTuple):
    """A request before which a process loses its turn."""

    process: int  # by its place among all
    request: int  # to a shared record, counted from 1
    of_writes: bool  # only writes are counted
    how: str  # `lower`: the others go first; `stop`: it stands still, also its renewals; `wait`: they go on
    seconds: float  # that it stands still


@functools.lru_cache(maxsize=100_000)
def is_shared(key: str) -> bool:
    """Return True for a record by which processes find each other: requests to all others commute, but for prunes."""
    return key.startswith(("releases", ".locks")) or key.endswith("/release/number.json")


class Order:
    """Chooses the next strand among those that are ready. This one is fair."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def choose(self, ready: Sequence[Strand]) -> Strand:
        """Return one of at least two strands."""
        return ready[int(self.rng.random() * len(ready))]

    def before(self, strand: Strand, what: str, key: str, stop: Callable[[Strand, bool, float], None]) -> None:
        """See a request before its turn; `stop` gets a strand, if its process stands still too, and the seconds."""


class Ranked(Order):
    """One process runs ahead of the others until the ranks change."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__(rng)
        self._ranks: dict[int, float] = {}

    def choose(self, ready: Sequence[Strand]) -> Strand:
        if self.rng.random() < 0.1:
            self._ranks[self.rng.choice(ready).process.place] = self.rng.random()
        return max(ready, key=lambda strand: self._rank(strand.process))

    def _rank(self, process: Process) -> float:
        if process.place not in self._ranks:
            self._ranks[process.place] = self.rng.random()
        return self._ranks[process.place]


class Preempted(Ranked):
    """The process of the highest rank has all turns, but for a few points."""

    def __init__(self, rng: random.Random, commands: Sequence[str]) -> None:
        super().__init__(rng)
        places = list(range(len(commands)))
        rng.shuffle(places)
        self._ranks = {place: 1.0 - at / len(places) for at, place in enumerate(places)}
        self._lowest = 0.0
        self._seen: dict[tuple[int, bool], int] = {}
        self._points = {}
        for at in range(rng.choice((1, 1, 2, 2, 3))):
            place = places[min(at, len(places) - 1)] if rng.random() < 0.7 else rng.choice(places)
            self._add(place, commands[place])

    def _add(self, place: int, command: str) -> None:
        rng, of_writes = self.rng, self.rng.random() < 0.5
        most = _WRITES if of_writes else _REQUESTS_OF_PRUNE if command.startswith("prune") else _REQUESTS
        how = rng.choices(("lower", "stop", "wait"), (0.35, 0.45, 0.2))[0]
        seconds = rng.choice(_PAUSES_SECONDS) if rng.random() < 0.3 else UNTIL_THE_OTHERS_ENDED
        point = Point(place, 1 + int(rng.random() * most), of_writes, how, seconds)
        self._points[place, of_writes, point.request] = point

    def choose(self, ready: Sequence[Strand]) -> Strand:
        return max(ready, key=lambda strand: (not strand.main, self._rank(strand.process)))

    def before(self, strand: Strand, what: str, key: str, stop: Callable[[Strand, bool, float], None]) -> None:
        if not strand.main or not is_shared(key):
            return
        for of_writes in (False, True) if what in WRITES else (False,):
            place = strand.process.place, of_writes
            count = self._seen[place] = self._seen.get(place, 0) + 1
            point = self._points.get((*place, count))
            if point is None:
                continue
            if point.how == "lower":
                self._lowest -= 1.0
                self._ranks[point.process] = self._lowest
            else:
                stop(strand, point.how == "stop", point.seconds)


def order_of(kind: str, rng: random.Random, commands: Sequence[str]) -> Order:
    """Return an order by its name: fair, ranked, preempted."""
    return Preempted(rng, commands) if kind == "preempted" else Ranked(rng) if kind == "ranked" else Order(rng)
