"""The act on each run, its stage and moment, and what others do meanwhile: drawn from a seed, to be repeated."""

import enum
import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from tasks.contracts.stages import Stage

PAUSE = (1.0, 6.0)  # seconds
LONG_PAUSE = (70.0, 180.0)  # seconds; a lease lasts 60

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
    conflicts = "conflicts"  # in a bucket among others: each write is answered with 409
    cut_off = "cut-off"  # there too: the orchestrator's connections to the bucket break


ANYWHERE = tuple(Act)[:9]
KILLS = {Act.kill_orchestrator, Act.kill_worker, Act.kill_all, Act.kill_server}


class Actor(enum.StrEnum):
    """Who works in a workspace next to the run."""

    refresher = "refresher"
    reader = "reader"
    person = "person"


class Deed(enum.StrEnum):
    """One thing that an actor does; each is one or two commands."""

    refresh = "refresh"
    look = "look"
    rollback = "rollback"
    hold = "hold"
    prune = "prune"
    run = "run"
    ingest = "ingest"


class Turn(NamedTuple):
    """One deed of an actor."""

    actor: Actor
    deed: Deed
    share: float  # of the run's undisturbed time that is over when it begins, from 0 to 1


class Draw(NamedTuple):
    """One disturbed run."""

    number: int  # from 1
    act: Act
    stage: Stage
    share: float  # of the stage's undisturbed time that is over when it happens, from 0 to 1
    seconds: float  # how long it lasts, if it is something that passes
    whole: bool  # the run begins with its first stage, not with this one
    turns: tuple[Turn, ...] = ()  # of each of the others, in their order

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages that have to be done."""
        return tuple(Stage)[0 if self.whole else tuple(Stage).index(self.stage) :]


def draws(seed: int, count: int, whole_share: float) -> tuple[Draw, ...]:
    """Return the first `count` draws of a seed; about a share of `whole_share` begins with the first stage.

    Acts and stages are dealt from two shuffled decks, so each comes as often as any other, give or take one. Draw
    number n does not depend on `count`.
    """
    chance = random.Random(seed)
    some_acts, some_stages = _dealt(ANYWHERE, chance), _dealt(tuple(Stage), chance)
    return tuple(
        Draw(
            number,
            next(some_acts),
            next(some_stages),
            chance.random(),
            chance.uniform(*PAUSE),
            chance.random() < whole_share,
        )
        for number in range(1, count + 1)
    )


def _dealt(deck: Sequence[T], chance: random.Random) -> Iterator[T]:
    while True:
        yield from chance.sample(deck, len(deck))


_OF_A_PERSON = (Deed.rollback, Deed.hold, Deed.prune, Deed.run, Deed.ingest)
_TROUBLES = (None, None, None, Act.conflicts, Act.cut_off)


def crowds(seed: int, count: int, whole_share: float, bucket: bool) -> tuple[Draw, ...]:
    """Return the first `count` draws of a seed with three other actors each; number n does not depend on `count`.

    Every second stop and every cut-off lasts longer than a lease. One actor refreshes twice, one looks four times, and
    a person does two things.

    Args:
        bucket: the workspace is in a bucket, so there are its acts too.
    """
    return tuple(
        _crowd(random.Random(f"{seed}/{draw.number}"), draw, bucket) for draw in draws(seed, count, whole_share)
    )


def _crowd(chance: random.Random, draw: Draw, bucket: bool) -> Draw:
    drawn = chance.choice(_TROUBLES)
    trouble = drawn if bucket else None
    long, seconds = chance.random() < 0.5, chance.uniform(*LONG_PAUSE)
    if trouble is Act.cut_off or (draw.act is Act.stop_all and long):
        draw = draw._replace(seconds=seconds)
    person = chance.sample(_OF_A_PERSON, 2)
    deeds = {Actor.refresher: [Deed.refresh] * 2, Actor.reader: [Deed.look] * 4, Actor.person: person}
    turns = [
        Turn(actor, deed, share)
        for actor, some in deeds.items()
        for deed, share in zip(some, sorted(chance.random() for _ in some), strict=True)
    ]
    return draw._replace(act=trouble or draw.act, turns=tuple(turns))
