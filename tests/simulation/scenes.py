"""Commands that work on one workspace at once, each as a process of its own; then the workspace comes to rest.

A seed decides the commands, the rules of the store, the disturbances and every turn.
"""

from __future__ import annotations

import contextlib
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

from pydantic import BaseModel

from infra.store import lease, s3_store, s3_upload, waiting
from infra.store.base import Conflict
from infra.store.manifest import read_fact
from tasks.foundation.clock import keep_time_by
from tasks.foundation.errors import ConfigError, StoreError
from tasks.foundation.records import Record
from tasks.running import lineage_hold
from tasks.running.lineage_lock import hold_lineage
from tasks.runs import adding_releases, holds, packs, releases
from tasks.runs.rollback import rollback
from tasks.upkeep import prune
from tests.simulation.invariants import Invariants
from tests.simulation.scheduler import Disturbances, Machine, Process, Scheduler, SimulatedClock
from tests.simulation.stores import InlineExecutor, Objects
from tests.simulation.whole_flows import FEED, FEED_VERSION, FLOWS, FencedRunner
from tests.simulation.without_prefect import without_prefect
from tests.simulation.workspaces import NEW_ITEMS, OTHER, SPANS, Ready, Workspace, four_releases, opened

POLL_SECONDS = 10.0  # between two looks at a lock; each second of waiting would be turns that decide nothing
QUIET_SECONDS = 130.0  # before each command at rest: leases of killed holders have ended
_VALIDATE: Any = vars(BaseModel)["model_validate_json"].__func__
MOST_KNOWN = 2000  # records that are kept in memory
_PERSONS_WENT_BACK = {"rollback", "rollback to", "rollback to 3"}


class Case(NamedTuple):
    """One interleaving."""

    seed: int
    rules: str  # of the store: bucket, directory
    commands: tuple[str, ...]
    disturbances: Disturbances


class Outcome(NamedTuple):
    """The end of an interleaving; no violation is an empty text."""

    case: Case
    violation: str
    scheduler: Scheduler


class World(NamedTuple):
    """The workspace of one interleaving."""

    workspace: Workspace
    objects: Objects
    store: Any


Command = Callable[[World], object]


def _run(world: World, name: str, lineage: str) -> None:
    """A run whose stages are done, as the end of `tasks/release.py`."""
    store = world.store
    with hold_lineage(store, f"lineages/{lineage}.run", _nobody):
        adding_releases.settle(store)
        adding_releases.add(store, **world.workspace.runs[name].arguments)


def _refresh(world: World, items: str) -> None:
    """A refresh whose workers write its outputs at once, as `flows/refresh.py`."""
    store = world.store
    if releases.hold_of(store) is not None:
        return
    adding_releases.settle(store)
    with hold_lineage(store, "lineages/main.refresh", _nobody, patience_seconds=0.0):
        current = releases.current(store)
        assert current is not None
        ready = world.workspace.refreshes[items, current.model.version]
        made = releases.of_run(store, ready.arguments["run_key"])
        if made is not None and (made.number == current.number or releases.was_left(store, made.number)):
            return
        _write(world, ready)
        adding_releases.add(store, **{**ready.arguments, "refreshed": current.number})


def _write(world: World, ready: Ready) -> None:
    """Manifests last; each is a turn, and the files before it are none."""
    for key, data in sorted(ready.written.items(), key=lambda item: item[0].endswith("MANIFEST.json")):
        if key in world.objects.files:
            continue
        if key.endswith(("MANIFEST.json", "plan.json")):
            world.store.write(key, data)
        else:
            world.objects.put(key, data)


def _read(world: World) -> None:
    """A reader of all releases, who then looks at the holder of the lineage."""
    for each in releases.history(world.store):
        releases.is_pruned(world.store, each.number)
    releases.current(world.store)
    world.store.peek("lineages/main.run")


def _nobody(_: str) -> None:
    """Nobody reads the sentences on waiting."""


COMMANDS: dict[str, Command] = {
    "run": lambda world: _run(world, "run", "main"),
    "run again": lambda world: _run(world, "run", "main"),
    "other run": lambda world: _run(world, "other run", OTHER),
    "refresh": lambda world: _refresh(world, NEW_ITEMS[0]),
    "refresh again": lambda world: _refresh(world, NEW_ITEMS[0]),
    "refresh more": lambda world: _refresh(world, NEW_ITEMS[1]),
    "rollback": lambda world: rollback(world.store),
    "rollback to": lambda world: rollback(world.store, to=1),
    "rollback to 3": lambda world: rollback(world.store, to=3),
    "hold": lambda world: holds.hold(world.store, "why"),
    "lift": lambda world: holds.lift(world.store),
    "settle": lambda world: adding_releases.settle(world.store),
    "prune": lambda world: prune.prune(world.store, 1, False, _nobody),
    "prune less": lambda world: prune.prune(world.store, 2, False, _nobody),
    "reader": _read,
    **{name: lambda world, flow=flow: flow(world.store) for name, flow in FLOWS.items()},
}
_FLOWS = tuple(FLOWS)
_RELEASING = ("run", "run again", "other run", "refresh", "refresh again", "refresh more")
_PRUNES = ("prune", "prune less")
_PERSONS = ("rollback", "rollback to", "rollback to 3", "hold", "lift")
# Commands that meet, and their share: some of the first, some of the second.
_MEETINGS: Sequence[tuple[float, Sequence[str], Sequence[str]]] = (
    (0.4, _RELEASING, (*_PERSONS, "settle", "reader")),
    (0.2, ("run", "run again"), ("refresh", "refresh more", "other run", "rollback", "hold")),
    (0.15, ("refresh", "refresh again"), ("run", "refresh more", "rollback", "rollback to 3", "lift")),
    (0.12, _PRUNES, (*_RELEASING, *_PERSONS, "reader")),
    (0.1, ("prune",), ("refresh", "rollback", "other run")),
    (0.03, _FLOWS, ("run", *_FLOWS, *_PERSONS, "prune", "reader")),
)


def case_of(seed: int) -> Case:
    """Return the interleaving of a seed."""
    rng = random.Random(seed)
    _, first, second = rng.choices(_MEETINGS, [share for share, _, _ in _MEETINGS])[0]
    commands = [*rng.sample(first, min(len(first), rng.choice((1, 2)))), *rng.sample(second, rng.choice((1, 1, 2)))]
    rules = rng.choice(("bucket", "bucket", "directory"))
    of_bucket = rules == "bucket"
    disturbances = Disturbances(
        kills=rng.choice((0, 0, 1, 2)),
        pauses=rng.choice((0, 1, 2)),
        jumps=rng.choice((0, 0, 0, 1)),
        lost_replies=rng.choice((0.0, 0.0, 0.1)) if of_bucket else 0.0,
        undecided=rng.choice((0.0, 0.0, 0.1)) if of_bucket else 0.0,
        within_turns=rng.choice((100, 500) if {*first} & {*_FLOWS, *_PRUNES} else (40, 80)),
    )
    return Case(seed, rules, tuple(dict.fromkeys(commands)), disturbances)


class Theatre:
    """This process as the place of simulations: its clock and its thread pools are simulated ones."""

    def __init__(self) -> None:
        self.clock = SimulatedClock()

    @contextlib.contextmanager
    def open(self) -> Iterator[Theatre]:
        """Put the clock and the thread pools in place inside the block."""
        logging.disable(logging.CRITICAL)
        with contextlib.ExitStack() as held:
            held.callback(logging.disable, logging.NOTSET)
            four_releases()  # by the true clock
            held.enter_context(keep_time_by(self.clock))
            held.enter_context(patch.object(waiting, "POLL_SECONDS", POLL_SECONDS))
            for module in (s3_store, s3_upload, packs):
                held.enter_context(patch.object(module, "ThreadPoolExecutor", InlineExecutor))
            held.enter_context(patch.object(Record, "model_validate_json", classmethod(_read_once)))
            for module in (lease, lineage_hold):
                held.enter_context(patch.object(module, "threading", self.clock))
            held.enter_context(without_prefect())
            yield self

    def play(self, case: Case) -> Outcome:
        """Run one interleaving to its end, then bring the workspace to rest and check it."""
        random.seed(case.seed)  # of the pauses between requests, in the code under test
        rng = random.Random(case.seed)
        workspace = four_releases()
        objects, scheduler = workspace.objects.copy(), Scheduler(rng, case.disturbances)
        objects.scheduler = scheduler
        machines = (Machine("one", 1000.0), Machine("two", 50_000.0))
        with self.clock.of(scheduler), opened(objects, case.rules, FencedRunner) as store:
            world = World(workspace, objects, store)
            invariants = Invariants(objects, scheduler)
            for name in case.commands:
                _start(world, scheduler, name, rng.choice(machines), rng.random())
            scheduler.run()
            if not scheduler.violation:
                _come_to_rest(world, scheduler, machines[0])
            if not scheduler.violation:
                invariants.at_end()
        return Outcome(case, scheduler.violation, scheduler)


_known: dict[tuple[type[Record], bytes], Record] = {}


def _read_once(kind: type[Record], data: bytes) -> Record:
    """Return the record in some bytes; records never change, and reading the same ones takes most of the time."""
    if (record := _known.get((kind, data))) is None:
        if len(_known) > MOST_KNOWN:
            _known.clear()
        record = _known[kind, data] = _VALIDATE(kind, data)
    return record


def _start(world: World, scheduler: Scheduler, name: str, machine: Machine, after_seconds: float = 0.0) -> Process:
    do = COMMANDS[name]
    return scheduler.start(name, machine, lambda: do(world), after_seconds)


def _come_to_rest(world: World, scheduler: Scheduler, machine: Machine) -> None:
    """Lift a hold, give each command that ended with an error once more, decide what waits: nothing is left then."""
    for process in scheduler.processes:
        _judge(scheduler, process)
    disturbed = [*scheduler.processes]
    scheduler.calm_down()
    pointer = _pointer(world)
    follow = ["lift"] if pointer is not None and pointer.hold is not None else []
    ended = {process.command for process in disturbed if process.ended and process.error is None}
    follow += [name for name in ("run", "run again", "other run", *FLOWS) if name in _names(disturbed) - ended]
    if "new items" in _names(disturbed):
        follow.append("whole refresh")
    again = [name for name in ("refresh", "refresh more") if name in _names(disturbed)]
    for name in [*follow, "settle", *again]:
        process = _start(world, scheduler, name, machine, QUIET_SECONDS)
        scheduler.run()
        if process.error is not None:
            scheduler.fail(f"{name}, alone, ended with {type(process.error).__name__}: {process.error}")
            return
    pointer = _pointer(world)
    for number in pointer.undecided if pointer is not None else ():
        if releases.is_made(world.store, number) and not releases.is_pruned(world.store, number):
            scheduler.fail(f"release {number} still waits for a decision")
    names = _names(disturbed)
    for name in again:
        _refresh_was_decided(world, scheduler, name)
    if not names & _PERSONS_WENT_BACK and "new items" in names:
        _new_items_are_released(world, scheduler)
    if not names & _PERSONS_WENT_BACK and names & {"run", "run again", "whole run"}:
        current, model = releases.current(world.store), world.workspace.runs["run"].arguments["model"]
        if current is None or current.model != model:
            scheduler.fail(f"the accepted model of {SPANS[2]} does not serve, but release {current and current.number}")


def _refresh_was_decided(world: World, scheduler: Scheduler, name: str) -> None:
    """A refresh that found nothing left to do has its release current, or it served and was left."""
    current = releases.current(world.store)
    assert current is not None
    items = NEW_ITEMS[0] if name == "refresh" else NEW_ITEMS[1]
    made = releases.of_run(world.store, world.workspace.refreshes[items, current.model.version].arguments["run_key"])
    if made is None or (made.number != current.number and not releases.was_left(world.store, made.number)):
        scheduler.fail(f"{name}, alone, left release {current.number} without its items")


def _new_items_are_released(world: World, scheduler: Scheduler) -> None:
    """The refresh that ended last found nothing left to do only if the current release has the new items."""
    current = releases.current(world.store)
    assert current is not None
    sources = read_fact(world.store, current.catalogue.prefix, "sources", list[str])
    if f"items/{FEED}/v{FEED_VERSION}" not in sources:
        scheduler.fail(f"release {current.number} serves without the items that came in before the last refresh")


def _judge(scheduler: Scheduler, process: Process) -> None:
    """A command may end with a conflict or a refusal; with an error of the store only if it was suspended."""
    if process.error is None or process.dead or isinstance(process.error, (ConfigError, Conflict)):
        return
    if isinstance(process.error, StoreError) and scheduler.disturbances.pauses:
        return
    scheduler.fail(f"{process.name} ended with {type(process.error).__name__}: {process.error}")


def _names(processes: list[Process]) -> set[str]:
    return {process.command for process in processes}


def _pointer(world: World) -> releases.Pointer | None:
    return releases.read_pointer(world.store)[1]
