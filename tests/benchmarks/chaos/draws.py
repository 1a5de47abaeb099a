"""What is done to a run, in which stage and when: drawn from a seed, so that any one of them can be repeated."""

import enum
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from tasks.contracts.stages import Stage

SHORTEST_SECONDS, LONGEST_SECONDS = 1.0, 6.0

T = TypeVar("T")


class Act(enum.StrEnum):
    """What is done."""

    kill_orchestrator = "kill-orchestrator"
    kill_worker = "kill-worker"
    kill_all = "kill-all"
    stop_all = "stop-all"
    kill_server = "kill-server"
    stop_server = "stop-server"
    store_errors = "store-errors"
    store_delays = "store-delays"
    disk_full = "disk-full"


class Draw(NamedTuple):
    """One disturbed run."""

    number: int  # from 1
    act: Act
    stage: Stage
    share: float  # of the stage's undisturbed time that is over when it happens, from 0 to 1
    seconds: float  # how long it lasts, if it is something that passes
    whole: bool  # the run begins with its first stage, not with this one


def draws(seed: int, count: int, whole_share: float) -> tuple[Draw, ...]:
    """Return the first `count` draws of a seed; about a share of `whole_share` begins with the first stage.

    Acts and stages are dealt from two shuffled decks, so each comes as often as any other, give or take one. Draw
    number n does not depend on `count`.
    """
    chance = random.Random(seed)
    some_acts, some_stages = _dealt(tuple(Act), chance), _dealt(tuple(Stage), chance)
    return tuple(
        Draw(
            number,
            next(some_acts),
            next(some_stages),
            chance.random(),
            chance.uniform(SHORTEST_SECONDS, LONGEST_SECONDS),
            chance.random() < whole_share,
        )
        for number in range(1, count + 1)
    )


def _dealt(deck: Sequence[T], chance: random.Random) -> Iterator[T]:
    while True:
        yield from chance.sample(deck, len(deck))
