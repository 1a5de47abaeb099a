"""A campaign: runs that are disturbed one after the other, each judged when it has ended by itself or by one rerun."""

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from tasks.contracts.stages import Stage
from tasks.foundation.errors import POLICIES, FailureClass
from tasks.foundation.records import Record
from tests.benchmarks.chaos.acts import strike
from tests.benchmarks.chaos.command import LONGEST_SECONDS
from tests.benchmarks.chaos.draws import Act, Draw
from tests.benchmarks.chaos.invariants import problems
from tests.benchmarks.chaos.place import Ended, Place, Running, Scene, first_stage

POLL_SECONDS = 0.02
SOONER = 0.5  # of its time in the stage, after which the act comes if the run had ended before it could
TRIES = 3

Say = Callable[[str], None]
How = Literal["itself", "one rerun", "not"]


class ChaosRun(Record):
    """A run that was disturbed."""

    number: int = Field(description="to repeat it: --only")
    act: Act
    stage: Stage = Field(description="in which it was done")
    whole: bool = Field(description="from the first stage on; else the stages before this one were done already")
    seconds_until: float = Field(description="from the begin of the stage to the act")
    seconds_lasting: float = Field(description="of what passes: a stop, an outage; 0: it does not pass")
    first_end: str = Field(description="of the command that was disturbed: state, failure class or killed")
    ended: How = Field(description="in a release: by itself, by one rerun of the same command, or not")
    seconds: float = Field(description="of all commands")
    seconds_lost: float = Field(description="more than the same stages take undisturbed; at least 0")
    violations: tuple[str, ...] = Field(description="what does not hold of what it left")


class ChaosReport(Record):
    """All disturbed runs of a campaign."""

    place: str
    seed: int
    undisturbed_seconds: float = Field(description="of a run from its first stage to its release")
    runs: tuple[ChaosRun, ...]
    violations: int = Field(description="runs of which something does not hold")
    kept: tuple[str, ...] = Field(description="workspaces of those runs, for a look")


class ChaosRow(Record):
    """The runs in which one act was done in one stage."""

    act: Act
    stage: Stage
    count: int
    by_itself: int
    by_one_rerun: int
    not_ended: int
    violations: int
    median_seconds_lost: float


def hold(
    make: Callable[[Path, Say], Place],
    folder: Path | None,
    seed: int,
    some: Sequence[Draw],
    say: Say,
    earlier: Sequence[ChaosRun] = (),
    save: Callable[[ChaosReport], object] = lambda report: None,
) -> ChaosReport:
    """Make a place and disturb a run there for each of some draws of a seed.

    All happens in the new folder `folder`, which stays, or in a temporary one, which stays where something does not
    hold. Raises what `make` does.

    Args:
        earlier: runs that are in the report already.
        save: called with the report so far after each run.
    """
    where = folder or Path(tempfile.mkdtemp(prefix="millrace-chaos-"))
    keep = folder is not None
    try:
        place = make(where, say)
        try:
            report = campaign(place, seed, some, say, earlier, save)
        finally:
            place.stop()
        keep = keep or bool(report.kept)
        return report
    finally:
        if not keep:
            shutil.rmtree(where, ignore_errors=True)


def campaign(
    place: Place,
    seed: int,
    some: Sequence[Draw],
    say: Say,
    earlier: Sequence[ChaosRun],
    save: Callable[[ChaosReport], object],
) -> ChaosReport:
    """Do the draws one after the other; `say` gets a line for each. Workspaces with a violation stay."""
    done: list[ChaosRun] = list(earlier)
    kept: list[str] = []
    report = _report(place, seed, done, kept)
    for draw in some:
        run, where = _disturbed(place, draw)
        done.append(run)
        say(sentence(run))
        for violation in run.violations:
            say(f"  VIOLATION: {violation}")
        if run.violations:
            kept.append(where)
        report = _report(place, seed, done, kept)
        save(report)
    return report


def _report(place: Place, seed: int, done: Sequence[ChaosRun], kept: Sequence[str]) -> ChaosReport:
    return ChaosReport(
        place=place.name,
        seed=seed,
        undisturbed_seconds=round(place.undisturbed.seconds(Stage.validate), 1),
        runs=tuple(done),
        violations=sum(bool(run.violations) for run in done),
        kept=tuple(kept),
    )


def sentence(run: ChaosRun) -> str:
    """Return what was done and how it ended, in one line."""
    ended = {"itself": "released by itself", "one rerun": "released by one rerun", "not": "NOT RELEASED"}[run.ended]
    return (
        f"{run.number}: {run.act} in {run.stage}, {run.seconds_until:.1f} s after its begin: {run.first_end}, {ended}, "
        f"{run.seconds_lost:.0f} s lost"
    )


def rows(report: ChaosReport) -> list[ChaosRow]:
    """Return the runs counted by act and stage, in the order of the acts and of the stages."""
    pairs = [(act, stage) for act in Act for stage in Stage]
    return [_row(some) for pair in pairs if (some := [run for run in report.runs if (run.act, run.stage) == pair])]


def _row(some: Sequence[ChaosRun]) -> ChaosRow:
    return ChaosRow(
        act=some[0].act,
        stage=some[0].stage,
        count=len(some),
        by_itself=sum(run.ended == "itself" for run in some),
        by_one_rerun=sum(run.ended == "one rerun" for run in some),
        not_ended=sum(run.ended == "not" for run in some),
        violations=sum(bool(run.violations) for run in some),
        median_seconds_lost=statistics.median(run.seconds_lost for run in some),
    )


def _disturbed(place: Place, draw: Draw) -> tuple[ChaosRun, str]:
    """Return the run of a draw, and where its workspace is, or was.

    If the run ends before the act can be done, it is tried again with the act sooner.
    """
    for attempt in range(TRIES):
        scene = place.scene(draw)
        run = None
        try:
            run = _once(place, scene, draw, draw.share * SOONER**attempt, last=attempt == TRIES - 1)
        finally:
            where = scene.close(keep=bool(run and run.violations))
        if run is not None:
            return run, where
    raise AssertionError("the last try always returns a run")


def _once(place: Place, scene: Scene, draw: Draw, share: float, last: bool) -> ChaosRun | None:
    """Return the run; None if the act could not be done, unless this try is the last."""
    began = time.monotonic()
    running = scene.start()
    until = share * place.undisturbed.until_next(draw.stage)
    wait(scene, running, draw.stage, until)
    struck = _stage_of(scene, draw)
    hit = strike(scene, running, draw)
    first = running.finish()
    if not hit and not last:
        return None
    ends = [first]
    if first.code != 0:
        ends.append(scene.start().finish())
    seconds = time.monotonic() - began
    found = [*_of_ends(ends), *scene.left_over(), *problems(scene.store, place.undisturbed.content)]
    if not hit:
        found.append("the act was never done: the run ended before it")
    released = name_of(ends[-1]) == "Released"
    return ChaosRun(
        number=draw.number,
        act=draw.act,
        stage=struck,
        whole=draw.whole,
        seconds_until=round(until, 1),
        seconds_lasting=round(draw.seconds, 1) if draw.act in _PASSING else 0.0,
        first_end=name_of(first),
        ended=("itself" if len(ends) == 1 else "one rerun") if released else "not",
        seconds=round(seconds, 1),
        seconds_lost=round(max(0.0, seconds - place.undisturbed.seconds(first_stage(draw))), 1),
        violations=tuple(found),
    )


_PASSING = {Act.stop_all, Act.stop_server, Act.store_errors, Act.store_delays, Act.disk_full}


def wait(scene: Scene, running: Running, stage: Stage, seconds: float) -> None:
    """Return `seconds` after the begin of the stage, that of the first one after the start of the command.

    Or once the command is over, or hangs.
    """
    hangs = time.monotonic() + LONGEST_SECONDS
    while stage is not Stage.validate and not scene.began(stage) and not running.over and time.monotonic() < hangs:
        time.sleep(POLL_SECONDS)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not running.over:
        time.sleep(POLL_SECONDS)


def _stage_of(scene: Scene, draw: Draw) -> Stage:
    """Return the stage that the run is in: the last one that has begun, which may be later than that of the draw."""
    begun = [stage for stage in Stage if scene.began(stage)]
    return max((draw.stage, *begun), key=list(Stage).index)


def name_of(ended: Ended) -> str:
    """Return the state with which a command ended, its failure class, or `killed`."""
    if ended.code is None:
        return "hung"
    if ended.code < 0:
        return "killed"
    if ended.code == 0:
        return str(json.loads(ended.out)["state"])
    return next((failure.value for failure, policy in POLICIES.items() if policy.exit_code == ended.code), "?")


def _of_ends(ends: Sequence[Ended]) -> list[str]:
    """Return what is wrong with how the commands ended."""
    found = []
    for number, ended in enumerate(ends, start=1):
        name = name_of(ended)
        if name in ("hung", "?", FailureClass.CODE) or (number == len(ends) and name != "Released"):
            found.append(f"command {number} of {len(ends)} ended as {name}: {ended.err.strip()[-2000:]}")
        if "Traceback (most recent call last)" in ended.err:
            found.append(f"command {number} of {len(ends)} shows a traceback: {ended.err.strip()[-2000:]}")
    return found
