"""A campaign: runs that are disturbed one after the other, each judged when it has ended by itself or by one rerun."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from pydantic import Field

from tasks.contracts.stages import Stage
from tasks.foundation.records import Record
from tests.benchmarks.chaos.acts import strike
from tests.benchmarks.chaos.crowd import finished, work
from tests.benchmarks.chaos.draws import KILLS, Act, Actor, Draw
from tests.benchmarks.disturbed.command import LONGEST_SECONDS, Command
from tests.benchmarks.disturbed.invariants import problems
from tests.benchmarks.disturbed.judge import RELEASED, Said, of_commands, of_crowd
from tests.benchmarks.disturbed.sealed import Watcher
from tests.benchmarks.disturbed.world import Scene, World

POLL_SECONDS = 0.02
SOONER = 0.5  # of its time in the stage, after which the act comes if the run had ended before it could
TRIES = 3

How = Literal["itself", "one rerun", "not"]


class Disturbed(Record):
    """A run that was disturbed."""

    number: int = Field(description="to repeat it: --only")
    act: Act
    stage: Stage = Field(description="in which it was done")
    whole: bool = Field(description="from the first stage on; else the stages before this one were done already")
    seconds_until: float = Field(description="from the begin of the stage to the act")
    seconds_lasting: float = Field(description="of an act that passes: a stop, an outage; 0: it does not pass")
    deeds: tuple[str, ...] = Field(description="of other actors, with the end of each")
    first_end: str = Field(description="of the command that was disturbed: state, failure class or killed")
    ended: How = Field(description="in a release: by itself, by one rerun of the same command, or not")
    seconds: float = Field(description="of all commands")
    seconds_lost: float = Field(description="more than the same stages take undisturbed; at least 0")
    violations: tuple[str, ...] = Field(description="statements that do not hold of the workspace it left")


class Report(Record):
    """All disturbed runs of a campaign."""

    place: str
    seed: int
    undisturbed_seconds: float = Field(description="of a run from its first stage to its release")
    runs: tuple[Disturbed, ...]
    kept: tuple[str, ...] = Field(description="folders of runs with violations, for a look")

    @property
    def wrong(self) -> int:
        """Runs with violations."""
        return sum(bool(run.violations) for run in self.runs)


def campaign(
    world: World,
    seed: int,
    some: Sequence[Draw],
    say: Callable[[str], None],
    earlier: Sequence[Disturbed] = (),
    save: Callable[[Report], object] = lambda report: None,
) -> Report:
    """Do the draws one after the other; `say` gets a line for each. Workspaces with a violation stay.

    Args:
        earlier: runs that are in the report already.
        save: called with the report so far after each run.
    """
    done = {run.number: run for run in earlier}
    whole_seconds = round(world.undisturbed.seconds(Stage), 1)
    for draw in some:
        done[draw.number] = run = _disturbed(world, draw)
        for line in (sentence(run), *(f"  VIOLATION: {violation}" for violation in run.violations)):
            say(line)
        save(_report(world, seed, whole_seconds, done))
    return _report(world, seed, whole_seconds, done)


def _report(world: World, seed: int, whole_seconds: float, done: dict[int, Disturbed]) -> Report:
    runs = tuple(done[number] for number in sorted(done))
    return Report(place=world.name, seed=seed, undisturbed_seconds=whole_seconds, runs=runs, kept=tuple(world.kept))


def sentence(run: Disturbed) -> str:
    """Return the act and the end, in one line."""
    ended = {"itself": "released by itself", "one rerun": "released by one rerun", "not": "NOT RELEASED"}[run.ended]
    act = f"{run.number}: {run.act} in {run.stage}, {run.seconds_until:.1f} s after its begin: {run.first_end}, {ended}"
    return "; ".join([act, *run.deeds, f"{run.seconds_lost:.0f} s lost"])


def counts(runs: Sequence[Disturbed], *by: str) -> Iterator[tuple[object, ...]]:
    """Yield the runs counted by some of their fields: the fields, the ends, violations, median seconds lost."""
    order = {value: number for number, value in enumerate((*Act, *Stage))}
    for key in sorted(
        {tuple(getattr(run, field) for field in by) for run in runs}, key=lambda key: [order[k] for k in key]
    ):
        some = [run for run in runs if tuple(getattr(run, field) for field in by) == key]
        ends = [sum(run.ended == how for run in some) for how in ("itself", "one rerun", "not")]
        lost = statistics.median(run.seconds_lost for run in some)
        yield (*key, len(some), *ends, sum(bool(run.violations) for run in some), f"{lost:.0f}")


def _disturbed(world: World, draw: Draw) -> Disturbed:
    """Return the run of a draw.

    If the run ends before the act can be done, it is tried again with the act sooner; among other actors it is not.
    """
    tries = 1 if draw.turns else TRIES
    for number in range(tries):
        scene = world.scene(f"run-{draw.number}", draw.stages)
        run = None
        try:
            run = _once(scene, draw, draw.share * SOONER**number, last=number == tries - 1)
        finally:
            scene.close(keep=bool(run and run.violations))
        if run is not None:
            return run
    raise AssertionError("the last try always returns a run")


def _once(scene: Scene, draw: Draw, share: float, last: bool) -> Disturbed | None:
    """Return the run; None if the act could not be done, unless this try is the last."""
    undisturbed, began = scene.world.undisturbed, time.monotonic()
    length, until = undisturbed.seconds(draw.stages), share * undisturbed.until_next(draw.stage)
    sealed = Watcher(scene.store) if draw.turns else None
    command, pool = scene.start(), ThreadPoolExecutor(len(Actor))
    each = [[turn for turn in draw.turns if turn.actor is actor] for actor in Actor]
    others = [pool.submit(work, scene, turns, length) for turns in each if turns]
    pool.shutdown(wait=False)
    wait(scene, command, draw.stage, until)
    struck = max({draw.stage, *scene.begun()}, key=list(Stage).index)  # the run may be in a later stage by now
    hit = strike(scene, command, draw)
    ends = [finished(None, command)]
    said = [one for other in others for one in other.result()]
    if not hit and not last:
        return None
    if ends[0].result.code != 0 or (draw.turns and ends[0].outcome != RELEASED):
        ends.append(finished(None, scene.start()))
    if sealed is not None:
        sealed.stop()
    seconds, released = time.monotonic() - began, ends[-1].outcome == RELEASED
    violations = [*of_commands([*ends, *said]), *scene.left_over()]
    if not released:
        violations.append(f"command {len(ends)} of {len(ends)} ended as {_end(ends[-1])}")
    if sealed is not None:
        violations += [*scene.changed_by_readers(), *sealed.problems()]
        violations += of_crowd(scene.store, undisturbed.content, scene.world.earlier, said)
    else:
        violations += problems(scene.store, undisturbed.content)
        violations += ["the act was never done: the run ended before it"] * (not hit)
    return Disturbed(
        number=draw.number,
        act=draw.act,
        stage=struck,
        whole=draw.whole,
        seconds_until=round(until, 1),
        seconds_lasting=0.0 if draw.act in KILLS else round(draw.seconds, 1),
        deeds=tuple(f"{one.words[0]} {one.outcome}" for one in said),
        first_end=ends[0].outcome,
        ended=("itself" if len(ends) == 1 else "one rerun") if released else "not",
        seconds=round(seconds, 1),
        seconds_lost=round(max(0.0, seconds - length), 1),
        violations=tuple(violations),
    )


def _end(said: Said) -> str:
    return f"{said.outcome}: {said.result.err.strip()[-2000:]}"


def wait(scene: Scene, command: Command, stage: Stage, seconds: float) -> None:
    """Return `seconds` after the begin of the stage, of the first one after the start of the command.

    Or once the command is over, or hangs.
    """
    hangs = time.monotonic() + LONGEST_SECONDS
    while not (stage is Stage.validate or stage in scene.begun() or command.over or time.monotonic() > hangs):
        time.sleep(POLL_SECONDS)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not command.over:
        time.sleep(POLL_SECONDS)
