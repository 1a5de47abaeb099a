"""Scenes: the commands that meet, the rules of the store, the disturbances and the order of turns, by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.simulation.scheduler import Disturbances
from tests.simulation.whole_flows import FLOWS


class Case(NamedTuple):
    """One interleaving."""

    seed: int
    rules: str  # of the store: bucket, directory
    commands: tuple[str, ...]
    disturbances: Disturbances
    order: str  # of turns: fair, ranked, preempted


_FLOWS = tuple(FLOWS)
_RELEASING = ("run", "run again", "other run", "refresh", "refresh again", "refresh more")
_PRUNES = ("prune", "prune less")
_PERSONS = ("rollback", "rollback to", "rollback to 3", "hold", "lift")
# Commands that meet, and their share: some of the first, some of the second.
_MEETINGS: Sequence[tuple[float, Sequence[str], Sequence[str]]] = (
    (0.4, _RELEASING, (*_PERSONS, "settle", "reader")),
    (0.2, ("run", "run again"), ("refresh", "refresh more", "other run", "rollback", "hold")),
    (0.15, ("refresh", "refresh again"), ("run", "refresh more", "rollback", "rollback to 3", "lift")),
    (0.12, _PRUNES, (*_RELEASING, *_PERSONS, "reader")),
    (0.1, ("prune",), ("refresh", "rollback", "other run")),
    (0.03, _FLOWS, ("run", *_FLOWS, *_PERSONS, "prune", "reader")),
)


def case_of(seed: int) -> Case:
    """Return the interleaving of a seed."""
    rng = random.Random(seed)
    _, first, second = rng.choices(_MEETINGS, [share for share, _, _ in _MEETINGS])[0]
    commands = [*rng.sample(first, min(len(first), rng.choice((1, 2)))), *rng.sample(second, rng.choice((1, 1, 2)))]
    rules = rng.choice(("bucket", "bucket", "directory"))
    of_bucket = rules == "bucket"
    disturbances = Disturbances(
        kills=rng.choice((0, 0, 1, 2)),
        pauses=rng.choice((0, 1, 2)),
        jumps=rng.choice((0, 0, 0, 1)),
        lost_replies=rng.choice((0.0, 0.0, 0.1)) if of_bucket else 0.0,
        undecided=rng.choice((0.0, 0.0, 0.1)) if of_bucket else 0.0,
        failures=rng.choice((0.0, 0.0, 0.0, 0.0, 0.03)) if of_bucket else 0.0,
        within_turns=rng.choice((100, 500) if {*first} & {*_FLOWS, *_PRUNES} else (40, 80)),
    )
    order = rng.choices(("fair", "ranked", "preempted"), (0.2, 0.2, 0.6))[0]
    return Case(seed, rules, tuple(dict.fromkeys(commands)), disturbances, order)
