"""Scenes: the commands that meet, the rules of the store, the disturbances and the order of turns, by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

from tests.simulation.beginnings import BEGINNINGS
from tests.simulation.scheduler import Disturbances
from tests.simulation.whole_flows import FLOWS


class Case(NamedTuple):
    """One interleaving."""

    seed: int
    rules: str  # of the store: bucket, directory
    commands: tuple[str, ...]
    disturbances: Disturbances
    order: str  # of turns: fair, ranked, preempted
    beginning: str  # state of the workspace


_FLOWS = tuple(FLOWS)
_RUNS = ("run", "run again")
_RELEASING = (*_RUNS, "other run", "refresh", "refresh again", "refresh more")
_PRUNES = ("prune", "prune less")
_ROLLBACKS = ("rollback", "rollback to 1", "rollback to 2", "rollback to 3", "rollback to 4")
_HOLDS = ("hold", "hold again", "lift")
_PERSONS = (*_ROLLBACKS, *_HOLDS)

Group = tuple[Sequence[str], Sequence[int]]  # commands, and the numbers of them of which one is drawn
# Groups that meet, and their share. A preempted order often begins with the first.
_MEETINGS: Sequence[tuple[float, Sequence[Group]]] = (
    (0.2, ((_RELEASING, (1, 2)), ((*_PERSONS, "settle", "reader"), (1, 1, 2)))),
    (0.15, ((_RELEASING, (1,)), (_RELEASING, (1,)), (_ROLLBACKS, (1,)))),
    (0.15, ((_RUNS, (2,)), (("refresh", "refresh more", "other run", "rollback", "hold", "settle"), (0, 1, 1)))),
    (0.1, ((_RELEASING, (2, 3)), (("settle", "lift", "rollback"), (0, 1)))),
    (0.15, ((("refresh", "refresh again"), (1, 2)), (("run", "refresh more", *_PERSONS), (1, 1, 2)))),
    (0.03, ((_HOLDS, (2, 3)), (("run", "refresh", "settle"), (1,)))),
    (0.05, ((("refresh", "run", "other run"), (1,)), (_ROLLBACKS, (1,)), (("prune",), (1,)), (_ROLLBACKS, (0, 1, 1)))),
    (0.05, ((("prune",), (1,)), (_RELEASING, (1,)), (_ROLLBACKS, (0, 1, 1)))),
    (0.05, ((_ROLLBACKS, (1,)), (("prune",), (1,)), (_RELEASING, (0, 1)))),
    (0.03, ((("prune",), (1,)), (_ROLLBACKS, (1,)), (_RELEASING, (1,)))),
    (0.03, ((_PRUNES, (1, 2)), ((*_RELEASING, *_PERSONS, "reader"), (1, 1, 2)))),
    (0.01, ((_FLOWS, (1, 2)), (("run", *_FLOWS, *_PERSONS, "prune", "reader"), (1, 1, 2)))),
)


def case_of(seed: int) -> Case:
    """Return the interleaving of a seed."""
    rng = random.Random(seed)
    groups = rng.choices([groups for _, groups in _MEETINGS], [share for share, _ in _MEETINGS])[0]
    commands = [name for names, counts in groups for name in rng.sample(names, rng.choice(counts))]
    long = {name for names, _ in groups for name in names} & {*_FLOWS, *_PRUNES}
    rules = rng.choice(("bucket", "bucket", "directory"))
    of_bucket = rules == "bucket"
    disturbances = Disturbances(
        kills=rng.choice((0, 0, 1, 2)),
        pauses=rng.choice((0, 1, 2)),
        jumps=rng.choice((0, 0, 0, 1)),
        lost_replies=rng.choice((0.0, 0.0, 0.1)) if of_bucket else 0.0,
        undecided=rng.choice((0.0, 0.0, 0.1)) if of_bucket else 0.0,
        failures=rng.choice((0.0, 0.0, 0.0, 0.0, 0.03)) if of_bucket else 0.0,
        within_turns=rng.choice((100, 300) if long else (40, 80)),
    )
    order = rng.choices(("fair", "ranked", "preempted"), (0.1, 0.2, 0.7))[0]
    beginning = rng.choices(BEGINNINGS, (0.55, 0.15, 0.15, 0.15))[0]
    return Case(seed, rules, tuple(dict.fromkeys(commands)), disturbances, order, beginning)
