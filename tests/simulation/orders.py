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
    (
        "put if",
        "put",
        "del if",
        "delete",
        "copy",
        "link",
        "rename",
        "compare",
        "unlink",
        "move",
        "load",
        "serve",
        "drop",
    )
)  # a compare is a swap's look and its write; the last three are of a target
UNTIL_THE_OTHERS_ENDED = float("inf")
_PAUSES_SECONDS = (70.0, 200.0)  # a lease lives for 60

Requests = tuple[str, bool, int]  # the record, if it is written, and about how often a command does so

# Requests by which processes meet.
_OF_RELEASES = (
    ("pointer", False, 6), ("pointer", True, 3), ("release", False, 4), ("release", True, 1), ("mark", False, 3),
    ("number", False, 4), ("number", True, 1), ("lock", False, 4), ("lock", True, 4),
)  # fmt: skip
_OF_PEOPLE = (("pointer", False, 4), ("pointer", True, 3), ("mark", False, 2), ("release", False, 3))
_OF_PRUNES = (
    ("lock", True, 6), ("lock", False, 6), ("mark", True, 4), ("mark", False, 4), ("pointer", False, 8),
    ("release", False, 12), ("files", True, 8),
)  # fmt: skip
# The same, but only the requests just before and in the writes that others depend on.
_AIMED_AT_RELEASES = (
    ("pointer", True, 2), ("number", True, 1), ("release", True, 1), ("release", True, 1), ("mark", False, 2),
    ("mark", False, 2), ("pointer", False, 3), ("release", False, 4),
)  # fmt: skip
_AIMED_AT_PEOPLE = (("pointer", True, 2), ("pointer", True, 2), ("mark", False, 2), ("pointer", False, 3))
_AIMED_AT_PRUNES = (("lock", True, 1), ("mark", True, 2), ("pointer", False, 8), ("files", True, 5), ("mark", False, 3))
_OF_INGESTS = (("version", True, 3), ("version", False, 4), ("lock", True, 3), ("lock", False, 3))
_PEOPLE = ("rollback", "hold", "lift", "settle", "reader")


class Point(NamedTuple):
    """A request before which a process loses its turn."""

    process: int  # by its place among all
    how: str  # `lower`: the others go first; `stop`: it stands still, also its renewals; `wait`: they go on
    seconds: float  # that it stands still


@functools.lru_cache(maxsize=100_000)
def shared_record(key: str) -> str:
    """Return the kind of a record by which processes find each other; empty for others, as only prunes meet there."""
    if key.startswith("releases"):
        return "pointer" if key == "releases/CURRENT" else "mark" if ".pruned.json" in key else "release"
    if key.startswith(".locks"):
        return "lock"
    if key.startswith("target "):
        return "target"
    if key.startswith(("spans/", "items/", "packs/feeds")):
        return "version"
    return "number" if key.endswith("/release/number.json") else ""


class Order:
    """The order of turns: this one gives each ready strand the same chance."""

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
        return self._first(ready)

    def _first(self, ready: Sequence[Strand]) -> Strand:
        """A renewal comes first: no system keeps a thread waiting for a lease's minute beside a process that works."""
        return max(ready, key=lambda strand: (not strand.main, self._rank(strand.process)))

    def _rank(self, process: Process) -> float:
        if process.place not in self._ranks:
            self._ranks[process.place] = self.rng.random()
        return self._ranks[process.place]


class Preempted(Ranked):
    """The process of the highest rank has all turns, but for a few points."""

    def __init__(self, rng: random.Random, commands: Sequence[str], stops: Sequence[Requests] = ()) -> None:
        super().__init__(rng)
        places = list(range(len(commands)))
        if not stops and rng.random() < 0.4:  # else as they are given
            rng.shuffle(places)
        self._ranks = {place: 1.0 - at / len(places) for at, place in enumerate(places)}
        self._lowest = 0.0
        self._seen: dict[tuple[int, str, bool], int] = {}
        self._points: dict[tuple[int, str, bool, int], Point] = {}
        if stops:
            for place, requests in enumerate(stops):
                self._add(place, (requests,), "stop", UNTIL_THE_OTHERS_ENDED)
            return
        if rng.random() < 0.6:  # the first stops within its work, and often the second within its own
            for place in places[: 1 + (rng.random() < 0.6)]:
                self._add(place, _aimed_at(commands[place]), "stop", UNTIL_THE_OTHERS_ENDED)
            return
        for at in range(rng.choice((1, 1, 2, 2, 3))):
            place = places[min(at, len(places) - 1)] if rng.random() < 0.7 else rng.choice(places)
            how = rng.choices(("lower", "stop", "wait"), (0.3, 0.5, 0.2))[0]
            seconds = rng.choice(_PAUSES_SECONDS) if rng.random() < 0.2 else UNTIL_THE_OTHERS_ENDED
            self._add(place, _of(commands[place]), how, seconds)

    def _add(self, place: int, requests: Sequence[Requests], how: str, seconds: float) -> None:
        record, writes, most = self.rng.choice(requests)
        self._points[place, record, writes, 1 + int(self.rng.random() * most)] = Point(place, how, seconds)

    def choose(self, ready: Sequence[Strand]) -> Strand:
        return self._first(ready)

    def before(self, strand: Strand, what: str, key: str, stop: Callable[[Strand, bool, float], None]) -> None:
        if not strand.main:
            return
        writes = what in WRITES
        record = shared_record(key) or ("files" if writes else "")
        if not record:
            return
        place = strand.process.place, record, writes
        count = self._seen[place] = self._seen.get(place, 0) + 1
        point = self._points.get((*place, count))
        if point is None:
            return
        if point.how == "lower":
            self._lowest -= 1.0
            self._ranks[point.process] = self._lowest
        else:
            stop(strand, point.how == "stop", point.seconds)


def _of(command: str) -> Sequence[Requests]:
    return _by_command(command, _OF_PRUNES, _OF_PEOPLE, _OF_RELEASES)


def _aimed_at(command: str) -> Sequence[Requests]:
    return _by_command(command, _AIMED_AT_PRUNES, _AIMED_AT_PEOPLE, _AIMED_AT_RELEASES)


def _by_command(
    command: str, prunes: Sequence[Requests], people: Sequence[Requests], releases: Sequence[Requests]
) -> Sequence[Requests]:
    word = command.partition(" ")[0]
    if word == "ingest":
        return _OF_INGESTS
    return prunes if word == "prune" else people if word in _PEOPLE else releases


def order_of(kind: str, rng: random.Random, commands: Sequence[str], stops: Sequence[Requests]) -> Order:
    """Return an order by its name: fair, ranked, preempted."""
    return Preempted(rng, commands, stops) if kind == "preempted" else Ranked(rng) if kind == "ranked" else Order(rng)
