"""Other actors next to a disturbed run, and when each of them comes: drawn from a seed, to be repeated."""

from __future__ import annotations

import enum
import random
from typing import NamedTuple

from tests.benchmarks.chaos.draws import Act, Draw, draws

LONG_PAUSE = (70.0, 180.0)  # seconds; a lease lasts 60


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


class Trouble(enum.StrEnum):
    """Trouble with the bucket alone, in place of an act."""

    conflicts = "conflicts"  # each write is answered with 409
    cut_off = "cut-off"  # the orchestrator's connections to the bucket break


class Crowd(NamedTuple):
    """A draw, and what else happens around it."""

    draw: Draw
    trouble: Trouble | None  # done in place of the draw's act
    turns: tuple[Turn, ...]  # of one actor, in their order


_OF_A_PERSON = (Deed.rollback, Deed.hold, Deed.prune, Deed.run, Deed.ingest)
_TROUBLES = (None, None, None, Trouble.conflicts, Trouble.cut_off)


def crowds(seed: int, count: int, whole_share: float, bucket: bool) -> tuple[Crowd, ...]:
    """Return the first `count` crowds of a seed; number n does not depend on `count`.

    Every second stop and every cut-off lasts longer than a lease. In each crowd one actor refreshes twice, one looks
    four times, and a person does two things.

    Args:
        bucket: the workspace is in a bucket, so there are its troubles too.
    """
    return tuple(
        _crowd(random.Random(f"{seed}/{draw.number}"), draw, bucket) for draw in draws(seed, count, whole_share)
    )


def _crowd(chance: random.Random, draw: Draw, bucket: bool) -> Crowd:
    trouble = chance.choice(_TROUBLES)
    long, seconds = chance.random() < 0.5, chance.uniform(*LONG_PAUSE)
    if (bucket and trouble is Trouble.cut_off) or (draw.act is Act.stop_all and long):
        draw = draw._replace(seconds=seconds)
    person = chance.sample(_OF_A_PERSON, 2)
    deeds = {Actor.refresher: [Deed.refresh] * 2, Actor.reader: [Deed.look] * 4, Actor.person: person}
    turns = [
        Turn(actor, deed, share)
        for actor, some in deeds.items()
        for deed, share in zip(some, sorted(chance.random() for _ in some), strict=True)
    ]
    return Crowd(draw, trouble if bucket else None, tuple(turns))
