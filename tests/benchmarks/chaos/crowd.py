"""A campaign with four actors: a disturbed run, hourly refreshes, somebody who looks, a person with a keyboard.

Each command must end by itself. What they leave is judged by `judged`; the acts on the run are those of acts.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

from pydantic import Field

from tasks.contracts.stages import Stage
from tasks.foundation.errors import FailureClass
from tasks.foundation.records import Record
from tests.benchmarks.chaos.actors import Actor, Crowd, Deed, Trouble, Turn
from tests.benchmarks.chaos.acts import strike
from tests.benchmarks.chaos.campaign import How, name_of, wait
from tests.benchmarks.chaos.command import Command
from tests.benchmarks.chaos.draws import Act, Draw
from tests.benchmarks.chaos.judge import Rolled, judged
from tests.benchmarks.chaos.place import Ended, Place, Scene, first_stage
from tests.benchmarks.chaos.sealed import Watcher

LOOKS = (("freshness",), ("status",), ("history",), ("releases",), ("history", "--ledger"), ("backfill", "list"))
TRACEBACK = "Traceback (most recent call last)"
# States in which the flow of the run, or of a refresh, may end; all else is a failure class.
WELL = {"Released", "NothingToDo", "Held", "Rejected", "done", "killed"}


class CrowdScene(Scene, Protocol):
    """A scene with room for other commands than the run."""

    def command(self, *words: str, **variables: str) -> Command: ...
    def reader(self, *words: str) -> Command:
        """Begin a command that must change nothing."""
        ...

    def changed_by_readers(self) -> list[str]:
        """Return what such commands changed all the same."""
        ...

    def run_words(self) -> tuple[str, ...]: ...
    def feed(self, number: int) -> Path:
        """Return a new file with some items that no row names."""
        ...

    def more_rows(self) -> Path:
        """Return a file with the rows of a later month."""
        ...

    def begin(self, trouble: Trouble) -> None: ...
    def earlier_runs(self) -> frozenset[str]: ...
    @property
    def config_file(self) -> Path: ...


class CrowdPlace(Place, Protocol):
    """A place that makes such scenes."""

    bucket: bool

    def crowd_scene(self, draw: Draw) -> CrowdScene: ...


class Said(NamedTuple):
    """A command of one of the actors, and how it ended."""

    actor: Actor | None  # None: the run
    words: tuple[str, ...]
    began: float  # seconds since 1970
    ended: float
    end: Ended


class CrowdRun(Record):
    """A scene of four actors."""

    number: int = Field(description="to repeat it: --only")
    act: str
    stage: Stage
    seconds_lasting: float
    deeds: tuple[str, ...] = Field(description="of the others, with how each ended")
    first_end: str = Field(description="of the run")
    ended: How = Field(description="in a release: by itself, by one rerun of the same command, or not")
    seconds: float = Field(description="of the whole scene")
    violations: tuple[str, ...] = Field(description="what does not hold of what it left")


class CrowdReport(Record):
    """All scenes of a campaign."""

    place: str
    seed: int
    runs: tuple[CrowdRun, ...]


def campaign(
    place: CrowdPlace, some: Sequence[Crowd], say: Callable[[str], None], save: Callable[[CrowdRun], object]
) -> None:
    """Do the crowds one after the other; `say` gets a line for each, `save` the run. One with a violation stays."""
    for crowd in some:
        scene = place.crowd_scene(crowd.draw)
        try:
            run = _scene(place, scene, crowd)
        except BaseException:
            scene.close(keep=False)
            raise
        where = scene.close(keep=bool(run.violations))
        say(sentence(run))
        for violation in run.violations:
            say(f"  VIOLATION: {violation}")
        if run.violations:
            say(f"  {where}")
        save(run)


def sentence(run: CrowdRun) -> str:
    """Return what was done and how it ended, in one line."""
    deeds = ", ".join(run.deeds)
    return f"{run.number}: {run.act} in {run.stage}: {run.first_end}, {run.ended}; {deeds}; {run.seconds:.0f} s"


def _scene(place: CrowdPlace, scene: CrowdScene, crowd: Crowd) -> CrowdRun:
    draw, began = crowd.draw, time.monotonic()
    length = place.undisturbed.seconds(first_stage(draw))
    watcher = Watcher(scene.store)
    run_began = time.time()
    running = scene.start()
    others = [_Others(scene, actor, [turn for turn in crowd.turns if turn.actor is actor], length) for actor in Actor]
    wait(scene, running, draw.stage, draw.share * place.undisturbed.until_next(draw.stage))
    if crowd.trouble is not None:
        scene.begin(crowd.trouble)
        time.sleep(draw.seconds)
        scene.recover()
    else:
        strike(scene, running, draw)
    first = running.finish()
    said = [Said(None, scene.run_words(), run_began, time.time(), first)]
    for other in others:
        said += other.join()
    ends = [first]
    if name_of(first) != "Released":
        run_began = time.time()
        ends.append(scene.start().finish())
        said.append(Said(None, scene.run_words(), run_began, time.time(), ends[-1]))
    watcher.stop()
    released = name_of(ends[-1]) == "Released"
    found = [
        *_of_commands(said),
        *([] if released else [f"the run was not released by its rerun: {ends[-1].err.strip()[-2000:]}"]),
        *scene.changed_by_readers(),
        *watcher.problems(),
        *scene.left_over(),
        *judged(scene.store, place.undisturbed.content, scene.earlier_runs(), list(_rolled(said))),
    ]
    return CrowdRun(
        number=draw.number,
        act=str(crowd.trouble or draw.act),
        stage=draw.stage,
        seconds_lasting=round(draw.seconds, 1) if crowd.trouble or draw.act not in _KILLS else 0.0,
        deeds=tuple(f"{one.words[0]} {_name(one.end)}" for one in said if one.actor is not None),
        first_end=name_of(first),
        ended=("itself" if len(ends) == 1 else "one rerun") if released else "not",
        seconds=round(time.monotonic() - began, 1),
        violations=tuple(found),
    )


_KILLS = {Act.kill_orchestrator, Act.kill_worker, Act.kill_all, Act.kill_server}


class _Others:
    """One actor, which does its turns one after the other, next to the run."""

    def __init__(self, scene: CrowdScene, actor: Actor, turns: Sequence[Turn], length: float) -> None:
        self._scene, self._actor, self._turns, self._length = scene, actor, turns, length
        self._began, self._said = time.monotonic(), list[Said]()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=actor)
        self._done = self._pool.submit(self._do)

    def join(self) -> list[Said]:
        """Wait for the last turn. Raises what a turn raised that could not be begun."""
        with self._pool:
            self._done.result()
        return self._said

    def _do(self) -> None:
        for number, turn in enumerate(self._turns):
            time.sleep(max(0.0, turn.share * self._length - (time.monotonic() - self._began)))
            for words in _commands(self._scene, turn.deed, number):
                began = time.time()
                look = turn.deed is Deed.look
                command = self._scene.reader(*words) if look else self._scene.command(*words)
                self._said.append(Said(self._actor, words, began, time.time(), command.finish()))
                self._said[-1] = self._said[-1]._replace(ended=time.time())


def _commands(scene: CrowdScene, deed: Deed, number: int) -> Iterator[tuple[str, ...]]:
    here = ("--workspace", scene.store.uri, "--json")
    config = ("--config", str(scene.config_file))
    cut = ("--format", "jsonl", "--time-column", "searched_at", "--span", "month")
    if deed is Deed.refresh:
        yield (
            "ingest",
            "--items",
            str(scene.feed(number)),
            *cut,
            "--merge",
            "--map",
            "id=product_id,text=product",
            *here,
        )
        yield ("refresh", *config, *here)
    elif deed is Deed.look:
        look = LOOKS[(number + int(time.time())) % len(LOOKS)]
        yield (*look, *(config if look[0] == "freshness" else ()), *here)
    elif deed is Deed.hold:
        yield ("hold", "--reason", "something looks wrong", *here)
        time.sleep(HOLD_SECONDS)
        yield ("hold", "--off", *here)
    elif deed is Deed.run:
        yield scene.run_words()
    elif deed is Deed.ingest:
        columns = "query=query,item=product,id=query_id,item_id=product_id,label=bought"
        yield ("ingest", "--source", str(scene.more_rows()), *cut, "--map", columns, *here)
    elif deed is Deed.prune:
        yield ("prune", "--keep", "2", *here)
    else:
        yield ("rollback", *here)


HOLD_SECONDS = 8.0


def _of_commands(said: Sequence[Said]) -> Iterator[str]:
    for one in said:
        name = _name(one.end)
        if name in ("hung", "?", FailureClass.CODE) or TRACEBACK in one.end.err:
            yield f"`millrace {' '.join(one.words)}` ended as {name}: {one.end.err.strip()[-2000:]}"


def _name(ended: Ended) -> str:
    """Return the state of a run or refresh, `done` of another command, the failure class, or `killed`."""
    if ended.code == 0:
        return str(json.loads(ended.out or "{}").get("state", "done")) if ended.out.startswith("{") else "done"
    return name_of(ended)


def _rolled(said: Sequence[Said]) -> Iterator[Rolled]:
    for one in said:
        if one.words[0] == "rollback" and one.end.code == 0:
            release = json.loads(one.end.out)["release"]
            yield Rolled(one.began, one.ended, release["model"]["version"])
