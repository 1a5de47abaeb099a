"""Play interleavings until a promise is broken, the time is over, or all are played.

A broken promise prints its seed, and `--seed N` plays exactly that interleaving again, with its turns.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable
from typing import NamedTuple

from tests.simulation.mutants import MUTANTS, planted
from tests.simulation.scenes import case_of
from tests.simulation.theatre import Outcome, Theatre

MUTANT_SECONDS = 60.0  # of processor time, within which a planted fault must be found


class Played(NamedTuple):
    """The interleavings of a call: their number, turns and seconds of processor, and the first that broke a promise."""

    interleavings: int
    turns: int
    seconds: float
    broken: Outcome | None  # with its turns


def play(theatre: Theatre, first: int, most: int, seconds: float) -> Played:
    """Play interleavings from seed `first` on."""
    began, turns, count = time.process_time(), 0, 0
    for seed in range(first, first + most):
        outcome = theatre.play(case_of(seed))
        count, turns = count + 1, turns + outcome.scheduler.turns
        if outcome.violation:
            return Played(count, turns, time.process_time() - began, _again(theatre, outcome))
        if time.process_time() - began > seconds:
            break
    return Played(count, turns, time.process_time() - began, None)


def _again(theatre: Theatre, broken: Outcome) -> Outcome:
    """Play a broken interleaving once more, and note its turns."""
    again = theatre.play(broken.case, tracing=True)
    if again.violation != broken.violation:
        raise AssertionError(
            f"seed {broken.case.seed} is not the same twice: {broken.violation!r}, then {again.violation!r}"
        )
    return again


def find_mutants(theatre: Theatre, names: Iterable[str], seconds: float) -> list[str]:
    """Play with each planted fault until the time limit; print a line for each, and return the missed ones."""
    missed = []
    for name in names:
        with planted(name):
            played = play(theatre, 0, 10**9, seconds)
        broken = played.broken
        found = f"seed {broken.case.seed}: {broken.violation}" if broken is not None else "MISSED"
        print(f"| {name} | {played.interleavings:,} | {played.seconds:.1f} | {found} |", flush=True)
        missed += [name] if broken is None else []
    return missed


def main() -> int:
    """Play, print the result, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--interleavings", type=int, default=10**9, help="the most to play")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of processor time, after which to end")
    parser.add_argument("--first", type=int, default=0, help="the first seed; the others follow it")
    parser.add_argument("--seed", type=int, help="play this one alone, and print its turns")
    parser.add_argument("--mutants", action="store_true", help="look for each planted fault in turn")
    parser.add_argument("--mutant", choices=list(MUTANTS), help="plant this fault in the code first")
    given = parser.parse_args()
    if given.seed is not None:
        given.first, given.interleavings = given.seed, 1
    with Theatre().open() as theatre:
        if given.mutants:
            return 1 if find_mutants(theatre, MUTANTS, min(given.seconds, MUTANT_SECONDS)) else 0
        with planted(given.mutant):
            played = play(theatre, given.first, given.interleavings, given.seconds)
            if given.seed is not None and played.broken is None:
                _print_turns(theatre.play(case_of(given.seed), tracing=True))
    print(f"{played.interleavings:,} interleavings, {played.turns:,} turns, {played.seconds:.1f} s of processor time")
    if played.broken is None:
        print("no promise was broken")
        return 0
    _print_turns(played.broken)
    case = played.broken.case
    print(f"\nseed {case.seed}: {played.broken.violation}")
    print(f"{', '.join(case.commands)} on a {case.rules}, {case.disturbances}, {case.order}")
    words = f" --mutant '{given.mutant}'" if given.mutant else ""
    print(f"again: python -m tests.simulation --seed {case.seed}{words}")
    return 1


def _print_turns(outcome: Outcome) -> None:
    print(*outcome.scheduler.trace, sep="\n")


if __name__ == "__main__":
    sys.exit(main())
