"""The rest after an interleaving: what waits is decided, what failed is given again, and then nothing is left."""

from __future__ import annotations

from infra.store.base import Conflict, InUse
from infra.store.manifest import read_fact
from tasks.foundation.errors import ConfigError, StoreError
from tasks.runs import releases, served_targets
from tasks.runs.plan import NothingToDo
from tasks.worker.export.target import release_of
from tests.simulation import targets
from tests.simulation.actors import World, ready_for, start
from tests.simulation.invariants import PERSONS, Invariants
from tests.simulation.scheduler import Machine, Process, Scheduler
from tests.simulation.whole_flows import FEED, FEED_VERSION, FLOWS, INGESTS, lost_records
from tests.simulation.workspaces import NEW_ITEMS, SPANS

QUIET_SECONDS = 130.0  # before each command at rest: leases of killed holders have ended


def come_to_rest(world: World, scheduler: Scheduler, invariants: Invariants, machine: Machine) -> None:
    """Lift a hold, give each command that ended with an error once more, decide what waits: nothing is left then."""
    for process in scheduler.processes:
        judge(scheduler, process, invariants)
    disturbed = [*scheduler.processes]
    scheduler.calm_down()
    pointer = _pointer(world)
    follow = ["lift"] if pointer is not None and pointer.hold is not None else []
    ended = {process.command for process in disturbed if process.ended and process.error is None}
    follow += [
        name for name in ("run", "run again", "other run", *FLOWS, *INGESTS) if name in _names(disturbed) - ended
    ]
    if "new items" in _names(disturbed):
        follow.append("whole refresh")
    again = [name for name in ("refresh", "refresh more") if name in _names(disturbed)]
    prunes = [name for name in ("prune", "prune less") if name in _names(disturbed) - ended]
    publish = ["publish"] if _names(disturbed) & targets.COMMANDS.keys() else []
    for name in [*follow, "settle", *again, *prunes, *publish]:
        process = start(world, scheduler, name, machine, QUIET_SECONDS)
        scheduler.run()
        if process.error is not None:
            scheduler.fail(f"{name}, alone, ended with {type(process.error).__name__}: {process.error}")
            return
    pointer = _pointer(world)
    for number in pointer.undecided if pointer is not None else ():
        if releases.is_made(world.store, number) and not releases.is_pruned(world.store, number):
            scheduler.fail(f"release {number} still waits for a decision")
    names = _names(disturbed)
    if publish:
        target_serves(world, scheduler)
    for name in again:
        _refresh_was_decided(world, scheduler, name)
    if (ingested := names & INGESTS.keys()) and (lost := lost_records(world.objects, world.store, ingested)):
        scheduler.fail(lost)
    went_back = any(name.startswith("rollback") for name in names)
    if not went_back and "new items" in names:
        _new_items_are_released(world, scheduler)
    if not went_back and names & {"run", "run again", "whole run"}:
        current, model = releases.current(world.store), world.workspace.runs["run"].arguments["model"]
        if current is None or current.model != model:
            scheduler.fail(f"the accepted model of {SPANS[2]} does not serve, but release {current and current.number}")


def _refresh_was_decided(world: World, scheduler: Scheduler, name: str) -> None:
    """A refresh that found nothing left to do has its release current, or it served and was left."""
    current = releases.current(world.store)
    assert current is not None
    items = NEW_ITEMS[0] if name == "refresh" else NEW_ITEMS[1]
    try:
        made = releases.of_run(world.store, ready_for(world, items, current).arguments["run_key"])
    except NothingToDo:
        return
    if made is None or (made.number != current.number and not releases.was_left(world.store, made.number)):
        scheduler.fail(f"{name}, alone, left release {current.number} without its items")


def _new_items_are_released(world: World, scheduler: Scheduler) -> None:
    """The refresh that ended last found nothing left to do only if the current release has the new items."""
    current = releases.current(world.store)
    assert current is not None
    sources = read_fact(world.store, current.catalogue.prefix, "sources", list[str])
    if f"items/{FEED}/v{FEED_VERSION}" not in sources:
        scheduler.fail(f"release {current.number} serves without the items that came in before the last refresh")


def target_serves(world: World, scheduler: Scheduler) -> None:
    """The last publication left the current release in the target, and its record says so."""
    current, noted = releases.current(world.store), served_targets.of_target(world.store, targets.NAME)
    number = release_of(world.target.served[0])
    if current is None or number != current.number or noted is None or noted.release != number:
        told = f"its record says {noted and noted.release}"
        scheduler.fail(f"the target serves release {number}, {told}, and current is {current and current.number}")


def judge(scheduler: Scheduler, process: Process, invariants: Invariants) -> None:
    """A command may end with a conflict or a refusal; with an error of the store if one stood still or it failed."""
    if process.error is None or process.dead:
        return
    if isinstance(process.error, (ConfigError, Conflict)):
        if process.name == invariants.moved_by and process.command.startswith(PERSONS):
            scheduler.fail(f"{process.name} did its work, and ended with: {process.error}")
        lock = str(process.error).partition(" ")[0].partition("sim/")[2]
        if isinstance(process.error, InUse) and invariants.taken_by.get(lock) == process.name:
            scheduler.fail(f"{process.name} was refused by its own lock: {process.error}")
        return
    if isinstance(process.error, StoreError) and (scheduler.stood_still or scheduler.disturbances.failures):
        return
    scheduler.fail(f"{process.name} ended with {type(process.error).__name__}: {process.error}")


def _names(processes: list[Process]) -> set[str]:
    return {process.command for process in processes}


def _pointer(world: World) -> releases.Pointer | None:
    return releases.read_pointer(world.store)[1]
