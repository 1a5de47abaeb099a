"""Commands that share a workspace: the functions of `tasks/` that the flows and the command line call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from configs.schema.operations import PruneConfig
from infra.store.manifest import mark_of
from tasks.contracts.runs import Release
from tasks.contracts.workspace import PRUNED_RUN
from tasks.prune import prune
from tasks.running.lineage_lock import hold_lineage
from tasks.runs import adding_releases, releases
from tasks.runs.holds import hold, lift
from tasks.runs.plan import NothingToDo
from tasks.runs.rollback import rollback
from tests.simulation import targets
from tests.simulation.objects import Objects
from tests.simulation.scheduler import Machine, Process, Scheduler
from tests.simulation.whole_flows import FLOWS, INGESTS
from tests.simulation.workspaces import NEW_ITEMS, OTHER, Ready, Workspace, made_again


class World(NamedTuple):
    """The workspace of one interleaving, and the service that its releases are published to."""

    workspace: Workspace
    objects: Objects
    store: Any
    target: targets.SimulatedTarget


Command = Callable[[World], object]


def run(world: World, ready: Ready, lineage: str = "main") -> None:
    """A run whose stages are done, as the end of `tasks/release.py`."""
    store = world.store
    with hold_lineage(store, f"lineages/{lineage}.run", _nobody):
        adding_releases.settle(store)
        adding_releases.add(store, **ready.arguments)


def refresh(world: World, ready_for: Callable[[Release], Ready]) -> None:
    """A refresh whose workers write its outputs at once, as `flows/refresh.py`.

    Args:
        ready_for: returns the work for a release that is current; raises NothingToDo.
    """
    store = world.store
    if releases.hold_of(store) is not None:
        return
    adding_releases.settle(store)
    with hold_lineage(store, "lineages/main.refresh", _nobody, patience_seconds=0.0):
        current = releases.current(store)
        assert current is not None
        try:
            ready = ready_for(current)
        except NothingToDo:
            return
        made = releases.of_run(store, ready.arguments["run_key"])
        if made is not None and (made.number == current.number or releases.was_left(store, made.number)):
            return
        _write(world, ready)
        adding_releases.add(store, **{**ready.arguments, "refreshed": current.number})


def ready_for(world: World, items: str, current: Release) -> Ready:
    """Return the work of a refresh of the current release. Raises NothingToDo: as `plan_refresh`."""
    ready = world.workspace.refreshes[items, current.model.version]
    return made_again(world.objects, items) if is_marked(world, ready) else ready


def is_marked(world: World, ready: Ready) -> bool:
    """Return True if a prune had the refresh, its release or one of its folders in its plan: it plans anew."""
    run_key, there = ready.arguments["run_key"], world.objects.files
    made = releases.of_run(world.store, run_key)
    marks = [PRUNED_RUN.key(run=run_key), *(mark_of(key.rpartition("/")[0]) for key in ready.written)]
    pruned = made is not None and releases.is_pruned(world.store, made.number)
    return pruned or any(mark in there for mark in marks)


def _write(world: World, ready: Ready) -> None:
    """Manifests last; each is a turn, and the files before it are none."""
    for key, data in sorted(ready.written.items(), key=lambda item: item[0].endswith("MANIFEST.json")):
        if key in world.objects.files:
            continue
        if key.endswith(("MANIFEST.json", "plan.json")):
            world.store.write(key, data)
        else:
            world.objects.put(key, data)


def _run(world: World, name: str, lineage: str = "main") -> None:
    run(world, world.workspace.runs[name], lineage)


def _refresh(world: World, items: str) -> None:
    refresh(world, lambda current: ready_for(world, items, current))


def _read(world: World) -> None:
    """A reader of all releases, who then looks at the holder of the lineage."""
    for each in releases.history(world.store):
        releases.is_pruned(world.store, each.number)
    releases.current(world.store)
    world.store.peek("lineages/main.run")


def _nobody(_: str) -> None:
    """Nobody reads the sentences on waiting."""


COMMANDS: dict[str, Command] = {
    "run": lambda world: _run(world, "run"),
    "run again": lambda world: _run(world, "run"),
    "other run": lambda world: _run(world, "other run", OTHER),
    "refresh": lambda world: _refresh(world, NEW_ITEMS[0]),
    "refresh again": lambda world: _refresh(world, NEW_ITEMS[0]),
    "refresh more": lambda world: _refresh(world, NEW_ITEMS[1]),
    "rollback": lambda world: rollback(world.store),
    **{f"rollback to {to}": lambda world, to=to: rollback(world.store, to=to) for to in (1, 2, 3, 4)},
    "hold": lambda world: hold(world.store, "why"),
    "hold again": lambda world: hold(world.store, "another reason"),
    "lift": lambda world: lift(world.store),
    "settle": lambda world: adding_releases.settle(world.store),
    "prune": lambda world: prune.prune(world.store, PruneConfig.newest(1), False, _nobody),
    "prune less": lambda world: prune.prune(world.store, PruneConfig.newest(2), False, _nobody),
    "reader": _read,
    **{name: lambda world, act=act: act(world.store) for name, act in targets.COMMANDS.items()},
    **{name: lambda world, flow=flow: flow(world.store) for name, flow in {**FLOWS, **INGESTS}.items()},
}


def start(world: World, scheduler: Scheduler, name: str, machine: Machine, after_seconds: float = 0.0) -> Process:
    """Begin a command as a process."""
    do = COMMANDS[name]
    return scheduler.start(name, machine, lambda: do(world), after_seconds)
