"""Scenes: the commands that meet, the rules of the store, the disturbances and the order of turns, by a seed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tests.simulation import targets
from tests.simulation.orders import Requests
from tests.simulation.scheduler import Disturbances
from tests.simulation.whole_flows import FLOWS, INGESTS


class Case(NamedTuple):
    """One interleaving."""

    seed: int
    rules: str  # of the store: bucket, directory
    commands: tuple[str, ...]
    disturbances: Disturbances
    order: str  # of turns: fair, ranked, preempted
    beginning: str  # state of the workspace
    stops: Sequence[Requests] = ()  # before which the first commands stand still; none: drawn from all


_INGESTS = tuple(INGESTS)
_FLOWS = tuple(FLOWS)
_RUNS = ("run", "run again")
_RELEASING = (*_RUNS, "other run", "refresh", "refresh again", "refresh more")
_PRUNES = ("prune", "prune less")
_TO_ANOTHER_MODEL = ("rollback", "rollback to 1")
_ROLLBACKS = ("rollback", "rollback to 1", "rollback to 2", "rollback to 3", "rollback to 4")
_HOLDS = ("hold", "hold again", "lift")
_PUBLISHING = tuple(targets.COMMANDS)
_PERSONS = (*_ROLLBACKS, *_HOLDS)

_OFTEN = {"four releases": 0.45, "passed over": 0.12, "announced": 0.18, "gone back": 0.1, "held": 0.15}
_PLAIN = {"four releases": 1.0}
_ANNOUNCED = {"four releases": 0.3, "announced": 0.5, "passed over": 0.2}

Group = tuple[Sequence[str], Sequence[int]]  # commands, and the numbers of them of which one is drawn


class Meeting(NamedTuple):
    """Groups of commands that meet; a preempted order often begins with the first."""

    share: float  # of all interleavings, about
    groups: Sequence[Group]
    beginnings: Mapping[str, float] = _OFTEN  # states of the workspace, and their shares
    stops: Sequence[Requests] = ()  # of the first commands; they come in this order, and each goes on in it


# The shortest stories in which one missing step breaks a promise.
_STORIES = (
    # A second process of a run looks for the release just before the first one makes it.
    Meeting(0.04, ((("run",), (1,)), (("run again",), (1,))), _PLAIN, (("release", True, 1), ("pointer", False, 2))),
    # The pointer moves and comes back while a command is about to announce its number.
    Meeting(
        0.03,
        ((("refresh", "other run"), (1,)), (("run",), (1,)), (("rollback to 4",), (1,))),
        _PLAIN,
        (("pointer", True, 1),),
    ),
    # A person goes back to a release that is in the plan of a prune.
    Meeting(0.03, ((("prune",), (1,)), (("rollback to 2",), (1,))), _PLAIN, (("mark", True, 2), ("pointer", True, 3))),
    # A prune loses its locks after it made its plan, and a rollback needs files of that plan again.
    Meeting(
        0.05,
        ((("prune",), (1,)), (("rollback to 4",), (1,)), (("refresh",), (1,))),
        {"gone back": 1.0},
        (("mark", True, 3),),
    ),
    # A prune stands still before a deletion, and a refresh needs files of its plan again meanwhile.
    Meeting(
        0.05,
        ((("prune",), (1,)), (("rollback to 4",), (1,)), (("refresh",), (1,))),
        {"gone back": 1.0},
        (("files", True, 12),),
    ),
    # The same, of a release that was passed over; the first refresh stands still nowhere.
    Meeting(
        0.02,
        ((("refresh more",), (1,)), (("prune",), (1,)), (("refresh",), (1,))),
        {"passed over": 1.0},
        (("target", True, 1), ("files", True, 12)),
    ),
    # A prune marks the number and deletes the files of a release that stands still before it looks for the mark. Its
    # number is announced, so the pointer that a person moved meanwhile does not stop it.
    Meeting(
        0.03,
        ((("refresh", "refresh more"), (1,)), (_TO_ANOTHER_MODEL, (1,)), (("prune",), (1,))),
        {"announced": 1.0},
        (("mark", False, 1),),
    ),
    # A prune marks the number of a run that stands still before it makes its release; another one comes after that.
    Meeting(
        0.01,
        ((("run",), (1,)), (("prune less",), (1,)), (("prune",), (1,))),
        _PLAIN,
        (("release", True, 1), ("lock", True, 1)),
    ),
    # A publication stands still before it drops an old table, to which a person goes back meanwhile.
    Meeting(0.02, ((("publish",), (1,)), (("rollback to 2 and publish",), (1,))), _PLAIN, (("target", True, 4),)),
    # A person goes back while a publication loads its table.
    Meeting(0.01, ((("publish",), (1,)), (_TO_ANOTHER_MODEL, (1,))), _PLAIN, (("target", True, 2),)),
    # An ingest stands still before it completes a version, and goes on in the middle of another one's.
    Meeting(
        0.02,
        ((("ingest", "ingest items"), (1,)), (("ingest more", "ingest more items"), (2,))),
        _PLAIN,
        (("version", True, 3), ("version", True, 3), ("version", True, 3)),
    ),
    # A prune marks the number of a release that is about to be made.
    Meeting(0.02, ((("refresh", "run"), (1,)), (("prune",), (1,))), _PLAIN, (("release", True, 1),)),
)
_MEETINGS = (
    *_STORIES,
    Meeting(0.13, ((_RELEASING, (1, 2)), ((*_PERSONS, "settle", "reader"), (1, 1, 2)))),
    Meeting(0.06, ((_RELEASING, (1,)), (_RELEASING, (1,)), (_ROLLBACKS, (1,)))),
    Meeting(0.07, ((_RELEASING, (1,)), (("run", "refresh"), (1,)), (("rollback", "rollback to 4"), (1,)))),
    Meeting(0.2, ((_RUNS, (2,)), (("refresh", "refresh more", "other run", "rollback", "hold", "settle"), (0, 0, 1)))),
    Meeting(0.08, ((_RELEASING, (2, 3)), (("settle", "lift", "rollback"), (0, 1)))),
    Meeting(0.1, ((("refresh", "refresh again"), (1, 2)), (("run", "refresh more", *_PERSONS), (1, 1, 2)))),
    Meeting(0.03, ((_HOLDS, (2, 3)), (("run", "refresh", "settle"), (1,)))),
    Meeting(
        0.04,
        ((("refresh", "run", "other run"), (1,)), (_ROLLBACKS, (1,)), (("prune",), (1,)), (_ROLLBACKS, (0, 1, 1))),
    ),
    Meeting(0.1, ((("refresh", "refresh more"), (1,)), (_TO_ANOTHER_MODEL, (1,)), (("prune",), (1,))), _ANNOUNCED),
    Meeting(0.04, ((("prune",), (1,)), (_RELEASING, (1,)), (_ROLLBACKS, (0, 1, 1)))),
    Meeting(0.04, ((("rollback to 2", *_ROLLBACKS), (1,)), (("prune",), (1,)), (_RELEASING, (0, 1)))),
    Meeting(0.02, ((("prune",), (1,)), (_ROLLBACKS, (1,)), (_RELEASING, (1,)))),
    Meeting(0.06, ((("prune",), (1,)), (("rollback to 2",), (1,)))),
    Meeting(0.02, ((_PRUNES, (1, 2)), ((*_RELEASING, *_PERSONS, "reader"), (1, 1, 2)))),
    Meeting(0.02, ((_PUBLISHING, (1, 2)), ((*_RELEASING, *_ROLLBACKS, "prune"), (1, 1, 2)))),
    Meeting(0.02, ((_INGESTS, (2, 3)), ((*_PERSONS, "prune", "reader"), (0, 1))), _PLAIN),
    Meeting(0.005, ((_FLOWS, (1, 2)), (("run", *_FLOWS, *_PERSONS, "prune", "reader"), (1, 1, 2)))),
)


def case_of(seed: int) -> Case:
    """Return the interleaving of a seed."""
    rng = random.Random(seed)
    meeting = rng.choices(_MEETINGS, [each.share for each in _MEETINGS])[0]
    commands = [name for names, counts in meeting.groups for name in rng.sample(names, rng.choice(counts))]
    long = {name for names, _ in meeting.groups for name in names} & {*_FLOWS, *_PRUNES}
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
    stops = meeting.stops if rng.random() < 0.9 else ()
    order = "preempted" if stops else rng.choices(("fair", "ranked", "preempted"), (0.1, 0.1, 0.8))[0]
    beginning = rng.choices([*meeting.beginnings], [*meeting.beginnings.values()])[0]
    return Case(seed, rules, tuple(dict.fromkeys(commands)), disturbances, order, beginning, stops)
