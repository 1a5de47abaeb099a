"""Play interleavings until a promise is broken, the time is over, or all are played.

A broken promise prints its seed, and `--seed N` plays exactly that interleaving again, with its turns.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from tests.simulation.mutants import MUTANTS, planted
from tests.simulation.scenes import case_of
from tests.simulation.stores import make_own_copies
from tests.simulation.theatre import Outcome, Theatre

MUTANT_SECONDS = 60.0  # of processor time, within which a planted fault must be found


class Played(NamedTuple):
    """The interleavings of a call: their number, turns and seconds of processor, and the seed of one that broke."""

    interleavings: int
    turns: int
    seconds: float
    broken: int | None


def play(theatre: Theatre, seeds: Iterable[int], seconds: float) -> Played:
    """Play the interleavings of these seeds, up to a number of seconds of processor time."""
    began, turns, count, broken = time.process_time(), 0, 0, None
    for seed in seeds:
        outcome = theatre.play(case_of(seed))
        count, turns = count + 1, turns + outcome.scheduler.turns
        if outcome.violation:
            broken = seed
        if broken is not None or time.process_time() - began > seconds:
            break
    return Played(count, turns, time.process_time() - began, broken)


def play_by(theatre: Theatre, processes: int, seeds: range, seconds: float) -> Played:
    """Play as `play` does, by several processes; each has its share of the seeds. The first broken one ends all."""
    if processes == 1:
        return play(theatre, seeds, seconds)
    shares = [lambda share=share: play(theatre, seeds[share::processes], seconds) for share in range(processes)]
    done: list[Played] = []
    for played in each_in_a_process(shares):
        done.append(played)
        if played.broken is not None:
            break
    return Played(
        sum(each.interleavings for each in done),
        sum(each.turns for each in done),
        sum(each.seconds for each in done),
        next((each.broken for each in done if each.broken is not None), None),
    )


FIRST_OF_A_FAULT = 20_000  # seed; the rarest fault is found 183 seeds later, and 4,909 after seed 0


def find_mutants(theatre: Theatre, names: Sequence[str], seconds: float, processes: int) -> bool:
    """Plant one fault after the other, play, and print a line for each; return False if one was missed.

    Args:
        seconds: of processor time, the most for one fault.
    """

    def look(name: str) -> tuple[str, Played, str]:
        with planted(name):
            played = play(theatre, range(FIRST_OF_A_FAULT, 10**9), seconds)
            found = "MISSED" if played.broken is None else again(theatre, played.broken).violation
        return name, played, found

    shares = [lambda share=share: [look(name) for name in share] for share in ([name] for name in names)]
    all_found = True
    for begin in range(0, len(shares), processes):
        for looked in each_in_a_process(shares[begin : begin + processes]):
            for name, played, found in looked:
                seed = "" if played.broken is None else f"seed {played.broken}: "
                print(f"| {name} | {played.interleavings:,} | {played.seconds:.1f} | {seed}{found} |", flush=True)
                all_found &= played.broken is not None
    return all_found


def again(theatre: Theatre, seed: int) -> Outcome:
    """Play a seed once more, and note its turns. Raises AssertionError if it is not the same twice."""
    outcome = theatre.play(case_of(seed), tracing=True)
    if outcome.violation != theatre.play(case_of(seed)).violation:
        raise AssertionError(f"seed {seed} is not the same twice: {outcome.violation!r} once")
    return outcome


def each_in_a_process(works: Sequence[Callable[[], Any]]) -> Iterable[Any]:
    """Yield the results as they come, each of a process of its own; end the processes that are left."""
    context = multiprocessing.get_context("fork")  # what this one has read and made is there
    results: Any = context.SimpleQueue()

    def do(work: Callable[[], Any]) -> None:
        make_own_copies()
        results.put(work())

    children = [context.Process(target=do, args=(work,), daemon=True) for work in works]
    try:
        for child in children:
            child.start()
        for _ in children:
            while results.empty():
                time.sleep(0.05)
                if any(child.exitcode for child in children):
                    raise ChildProcessError("a process of the simulation ended with an error, see above")
            yield results.get()
    finally:
        for child in children:
            child.terminate()
            child.join()


def main() -> int:
    """Play, print the result, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--interleavings", type=int, default=10**9, help="the most to play")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="of each processor's time, then it ends")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="each plays its share of the seeds")
    parser.add_argument("--first", type=int, help="the first seed; the others follow it")
    parser.add_argument("--seed", type=int, help="play this one alone, and print its turns")
    parser.add_argument("--mutants", action="store_true", help="look for each planted fault in turn")
    parser.add_argument("--mutant", choices=list(MUTANTS), help="plant this fault in the code first")
    given = parser.parse_args()
    with Theatre().open() as theatre:
        if given.mutants:
            return 0 if find_mutants(theatre, list(MUTANTS), given.seconds, given.processes) else 1
        with planted(given.mutant):
            if given.seed is not None:
                played = play(theatre, [given.seed], given.seconds)
            else:
                first = given.first if given.first is not None else FIRST_OF_A_FAULT if given.mutant else 0
                seeds = range(first, first + given.interleavings)
                played = play_by(theatre, given.processes, seeds, given.seconds)
            shown = played.broken if given.seed is None else given.seed
            outcome = again(theatre, shown) if shown is not None else None
    count = f"{played.interleavings:,} interleavings, {played.turns:,} turns"
    print(f"{count}, {played.seconds:.1f} s of processor time")
    if outcome is not None:
        print(*outcome.scheduler.trace, sep="\n")
    if outcome is None or not outcome.violation:
        print("no promise was broken")
        return 0
    case = outcome.case
    print(f"\nseed {case.seed}: {outcome.violation}")
    print(f"{', '.join(case.commands)} on a {case.rules}, {case.beginning}, {case.order}, {case.disturbances}")
    words = f" --mutant '{given.mutant}'" if given.mutant else ""
    print(f"again: python -m tests.simulation --seed {case.seed}{words}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
