"""A year of one workspace: a refresh and a watch an hour, a run a week, a prune a night, publications, and people.

    python -m tests.simulation year --seed 3

The hours follow one another without a rest: what a killed command leaves, the next hour's commands find. A refresh has
the items of its hour, so after an undisturbed hour without a hold, the current release has them.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import itertools
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from unittest.mock import patch

import flows.orchestration.events
from configs.schema.operations import PruneConfig
from flows.orchestration.events import Event
from infra.store import lease
from tasks.contracts.references import SpanRef
from tasks.contracts.runs import Release
from tasks.prune import prune
from tasks.runs import adding_releases, releases
from tasks.runs.holds import hold, lift
from tasks.runs.rollback import rollback
from tests.simulation import actors, targets, watching
from tests.simulation.actors import World
from tests.simulation.invariants import Invariants, begin_of
from tests.simulation.mutants import MUTANTS, planted
from tests.simulation.orders import order_of
from tests.simulation.playing import each_in_a_process
from tests.simulation.rest import judge, target_serves
from tests.simulation.scheduler import Disturbances, Machine, Scheduler
from tests.simulation.stores import limit_copies
from tests.simulation.theatre import Theatre
from tests.simulation.watching import Alerts
from tests.simulation.whole_flows import FencedRunner
from tests.simulation.workspaces import NEW_ITEMS, PLAIN, Ready, beginning, opened, put_all

HOURS = 365 * 24
WEEK, DAY, HOUR_SECONDS = 168, 24, 3600.0
_MIDWEEK, _NIGHT = 60, 3  # hours of the run and of the prune
_KEPT = 30  # releases that a prune keeps
_RECORD = re.compile(r"(runs|refreshes)/.*/(plan|spec|result|ledger|verdicts)\.json")
_UNREAD = ("spec.json", "config.yaml")  # files of a refresh that no command here reads: a year of them is half a GiB


class Ended(NamedTuple):
    """The end of a year; no violation is an empty text. `commands`: number of each that began."""

    seed: int
    hours: int
    turns: int
    releases: int
    commands: Mapping[str, int]
    violation: str


class Year:
    """The workspace, its machines and its clock, which go on from hour to hour."""

    def __init__(self, theatre: Theatre, store: Any, objects: Any, rng: random.Random, rules: str, traced: int) -> None:
        self._theatre, self._rng, self._rules, self._traced = theatre, rng, rules, traced
        self._workspace = beginning(PLAIN)
        self._machines = Machine("one", 1000.0), Machine("two", 50_000.0)
        self.scheduler = self._new_scheduler(Disturbances(), "fair", (), (0.0, 0))
        objects.scheduler, objects.all_are_turns = self.scheduler, False
        self.invariants = Invariants(objects, self.scheduler, begin_of(self._workspace.objects))
        theatre.service.target = targets.SimulatedTarget(store, objects, self.invariants.left_at)
        self.world = World(self._workspace, objects, store, theatre.service.target)
        self.commands: Counter[str] = Counter()
        self._lift_at = 0
        self.alerts = Alerts(objects, rng, lambda said: self.scheduler.fail(said))

    def hour(self, hour: int) -> None:
        """Do the work of an hour. A broken promise is in `scheduler.violation`."""
        rng = self._rng
        commands = self._commands(hour)
        calm = rng.random() < 0.6
        order = rng.choices(("fair", "ranked", "preempted"), (0.4, 0.2, 0.4))[0]
        self._play(hour, commands, Disturbances() if calm else self._disturbances(), "fair" if calm else order)
        done = {process.name for process in self.scheduler.processes if process.error is None}  # else a prune was there
        if calm and "refresh" in done and not {"hold", "lift", "rollback", "run"} & commands.keys():
            self._has_items_of(hour)

    def rest(self, hour: int) -> None:
        """Give each command once more, alone. Then no release waits, and the target serves the current one."""
        store = self.world.store
        works = {
            name: self._work(name, hour, []) for name in ("lift", "settle", "refresh", "prune", "publish", "watch")
        }
        self.alerts.away = 0.0
        pointer = releases.read_pointer(store)[1]
        for after, (name, work) in enumerate(works.items()):
            if name != "lift" or (pointer is not None and pointer.hold is not None):
                self._play(hour + after, {name: work}, Disturbances(), "fair")
        if self.scheduler.violation:
            return
        self._has_items_of(hour)
        target_serves(self.world, self.scheduler)
        if waiting := adding_releases.waits(store):
            self.scheduler.fail(f"a release still waits for a decision: {waiting}")
        if not self.alerts.all_are_over():
            self.scheduler.fail("the end of a problem was never reported")
        self.invariants.at_end()

    def _commands(self, hour: int) -> dict[str, Callable[[], object]]:
        """Return the commands of an hour, in an order that they may begin in."""
        rng, names = self._rng, ["refresh", "publish", "watch"]
        found = self.alerts.hour(hour)
        if hour % WEEK == _MIDWEEK:
            put_all(self.world.objects, self._of_week(hour // WEEK).written)
            names += ["run", "run again"] if rng.random() < 0.3 else ["run"]
        if hour % DAY == _NIGHT:
            names.append("prune")
        for name, share in (
            ("refresh again", 0.15),
            ("publish again", 0.05),
            ("watch again", 0.15),
            ("reader", 0.05),
            ("rollback", 0.006),
        ):
            names += [name] if rng.random() < share else []
        if rng.random() < 0.004 and not self._lift_at:
            names.append("hold")
            self._lift_at = hour + rng.randrange(1, 40)
        if self._lift_at and hour >= self._lift_at:
            names.append("lift")
            self._lift_at = 0
        rng.shuffle(names)
        self.commands.update(names)
        return {name: self._work(name, hour, found) for name in names}

    def _work(self, name: str, hour: int, found: list[Event]) -> Callable[[], object]:
        world, store = self.world, self.world.store
        return {
            "refresh": lambda: actors.refresh(world, lambda current: self._of_hour(hour, current)),
            "run": lambda: actors.run(world, self._of_week(hour // WEEK)),
            "prune": lambda: prune.prune(store, PruneConfig.newest(_KEPT), False, lambda _: None),
            "publish": lambda: targets.publish(store),
            "reader": lambda: releases.current(store),
            "rollback": lambda: rollback(store),
            "hold": lambda: hold(store, "why"),
            "lift": lambda: lift(store),
            "settle": lambda: adding_releases.settle(store),
            "watch": lambda: watching.watch(store, found),
        }[name.partition(" ")[0]]

    def _play(
        self, hour: int, commands: Mapping[str, Callable[[], object]], disturbances: Disturbances, order: str
    ) -> None:
        if self.scheduler.violation:
            return
        for machine in self._machines:
            machine.ahead = 0.0  # a time server sets it right
        random.seed(self._rng.random())  # of the pauses between requests, in the code under test
        lease._seen.clear()
        limit_copies()
        self.invariants.forget_processes()
        began = max(self.scheduler.time, hour * HOUR_SECONDS), self.scheduler.turns
        self.scheduler = scheduler = self._new_scheduler(disturbances, order, tuple(commands), began)
        self.world.objects.scheduler = self.invariants.scheduler = scheduler
        with self._theatre.clock.of(scheduler):
            for name, work in commands.items():
                scheduler.start(name, self._rng.choice(self._machines), work, self._rng.random() * 300.0)
            scheduler.run()
            for process in scheduler.processes:
                judge(scheduler, process, self.invariants)

    def _new_scheduler(
        self, disturbances: Disturbances, order: str, commands: tuple[str, ...], began: tuple[float, int]
    ) -> Scheduler:
        kind = order_of(order, self._rng, commands or ("settle",), ())
        tracing = began[0] >= self._traced * HOUR_SECONDS
        return Scheduler(self._rng, disturbances, kind, tracing, began)

    def _disturbances(self) -> Disturbances:
        rng, of_bucket = self._rng, self._rules == "bucket"
        return Disturbances(
            kills=rng.choice((0, 0, 1, 2)),
            pauses=rng.choice((0, 1, 2)),
            jumps=rng.choice((0, 0, 0, 1)),
            lost_replies=rng.choice((0.0, 0.1)) if of_bucket else 0.0,
            undecided=rng.choice((0.0, 0.1)) if of_bucket else 0.0,
            failures=rng.choice((0.0, 0.0, 0.0, 0.03)) if of_bucket else 0.0,
        )

    def _has_items_of(self, hour: int) -> None:
        """The refresh of an hour that nothing disturbed serves, unless releases are held."""
        store = self.world.store
        current, hold = releases.current(store), releases.hold_of(store)
        assert current is not None
        made = releases.of_run(store, self._of_hour(hour, current).arguments["run_key"])
        if hold is None and (made is None or made.number != current.number):
            found = "has no release" if made is None else f"is release {made.number}"
            self.scheduler.fail(f"the refresh of hour {hour} {found}, and release {current.number} serves")

    # The work of an hour, and of a week: that of the simulation's workspace under other names

    def _of_hour(self, hour: int, current: Release) -> Ready:
        """Return the refresh of an hour, under another name after each prune that had it in its plan."""
        tries = (self._of_try(hour, current, again) for again in itertools.count())
        return next(ready for ready in tries if not actors.is_marked(self.world, ready))

    def _of_try(self, hour: int, current: Release, again: int) -> Ready:
        template = next(ready for (items, _), ready in self._workspace.refreshes.items() if items == NEW_ITEMS[0])
        old = template.arguments
        key, items = _name("refresh", hour, current.model.version, again), _name("items", hour, again)
        names = {
            old["run_key"]: f"refresh-{key}",
            old["inferred"].catalogue.prefix: f"catalogue/{items}",
            old["inferred"].prefix: f"vectors/{current.model.version}/{items}",
        }
        of_current = {
            "span": current.span,
            "model": current.model,
            "rows": current.rows,
            "exported": old["exported"].model_copy(
                update={"model": current.model_prefix, "model_sha256": current.model_sha256}
            ),
        }
        kept = {name: data for name, data in template.written.items() if not name.endswith(_UNREAD)}
        return _renamed(Ready({**old, **of_current}, kept), names)

    def _of_week(self, week: int) -> Ready:
        template = self._workspace.runs["run"]
        old = template.arguments
        version, items = f"m-{_name('model', week)[:8]}", _name("items of the run", week)
        model = old["model"]
        step = f"lineages/main/step-{model.checkpoint.step + 10 * (week + 1):08}"
        names = {
            old["run_key"]: _name("run", week),
            old["inferred"].catalogue.prefix: f"catalogue/{items}",
            old["inferred"].prefix: f"vectors/{version}/{items}",
            old["exported"].model: f"models/{version}",
            model.checkpoint.prefix: step,
            f'"{old["span"].name}"': f'"{_week(week)}"',
        }
        checkpoint = model.checkpoint.model_copy(update={"prefix": step})
        of_week = {
            "span": SpanRef(name=_week(week), version=1),
            "model": model.model_copy(update={"version": version, "checkpoint": checkpoint}),
            "exported": old["exported"].model_copy(update={"model": f"models/{version}"}),
        }
        return _renamed(Ready({**old, **of_week}, template.written), names)


def _renamed(ready: Ready, names: Mapping[str, str]) -> Ready:
    """Return work under other names, in keys and in records of runs; what manifests vouch for stays."""

    def new(text: str) -> str:
        for old, other in names.items():
            text = text.replace(old, other)
        return text

    old = ready.arguments["inferred"]
    catalogue = old.catalogue.model_copy(update={"prefix": new(old.catalogue.prefix)})
    inferred = old.model_copy(update={"prefix": new(old.prefix), "catalogue": catalogue})
    arguments = {**ready.arguments, "run_key": new(ready.arguments["run_key"]), "inferred": inferred}
    written = {
        new(key): new(data.decode()).encode() if _RECORD.match(key) else data for key, data in ready.written.items()
    }
    return Ready(arguments, written)


def _name(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


def _week(number: int) -> str:
    return f"{2027 + number // 52}-W{number % 52 + 1:02}"


def play(theatre: Theatre, seed: int, hours: int, traced: int = sys.maxsize) -> tuple[Ended, Scheduler]:
    """Play the hours of a seed. `traced`: the first hour whose turns are noted."""
    rng = random.Random(seed)
    objects, rules = beginning(PLAIN).objects.copy(), rng.choice(("bucket", "bucket", "directory"))
    with contextlib.ExitStack() as held:
        store = held.enter_context(opened(objects, rules, FencedRunner))
        held.enter_context(contextlib.redirect_stdout(None))
        year = Year(theatre, store, objects, rng, rules, traced)
        held.enter_context(patch.object(flows.orchestration.events, "deliver", year.alerts.deliver))
        hour = 0
        for hour in range(hours):
            year.hour(hour)
            if year.scheduler.violation:
                break
        else:
            year.rest(hours)
        done = releases.last(store) if not year.scheduler.violation else 0
    return Ended(seed, hour + 1, year.scheduler.turns, done, year.commands, year.scheduler.violation), year.scheduler


def play_years(theatre: Theatre, seeds: Sequence[int], hours: int, processes: int) -> Iterator[tuple[Ended, float]]:
    """Yield the end of each seed's year and its seconds of processor time, as they come."""

    def play_one(seed: int) -> tuple[Ended, float]:
        began = time.process_time()
        return play(theatre, seed, hours)[0], time.process_time() - began

    works = [lambda seed=seed: play_one(seed) for seed in seeds]
    for begin in range(0, len(works), processes):
        yield from each_in_a_process(works[begin : begin + processes])


def main() -> int:
    """Play years, print a line for each, and return the exit status; the first broken promise ends all."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation year", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="of the first year; the next ones follow it")
    parser.add_argument("--years", type=int, default=1)
    parser.add_argument("--hours", type=int, default=HOURS, help="of each year")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="each plays a year of its own")
    parser.add_argument("--mutant", choices=list(MUTANTS), help="plant this fault in the code first")
    given = parser.parse_args()
    with Theatre().open() as theatre, planted(given.mutant):
        seeds = range(given.seed, given.seed + given.years)
        for ended, seconds in play_years(theatre, seeds, given.hours, given.processes):
            counts = ", ".join(f"{count:,} {name}" for name, count in sorted(ended.commands.items()))
            print(f"seed {ended.seed}: {ended.hours:,} hours, {ended.turns:,} turns, {ended.releases:,} releases")
            print(f"{counts}; {seconds:.1f} s of processor time", flush=True)
            if ended.violation:
                print(*play(theatre, ended.seed, ended.hours, ended.hours - 1)[1].trace, sep="\n")
                words = f" --mutant '{given.mutant}'" if given.mutant else ""
                print(f"\nhour {ended.hours - 1} of seed {ended.seed}: {ended.violation}")
                print(f"again: python -m tests.simulation year --seed {ended.seed} --hours {ended.hours}{words}")
                return 1
    print("no promise was broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
