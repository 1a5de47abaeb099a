"""One interleaving: commands work on one workspace at once, each as a process; then the workspace comes to rest."""

from __future__ import annotations

import contextlib
import gc
import logging
import random
from collections.abc import Iterator
from typing import NamedTuple
from unittest.mock import patch

import tasks.publish
from infra.store import base, lease, s3_store, s3_transfers
from tasks.foundation.clock import keep_time_by
from tasks.running import lineage_hold
from tasks.runs import snapshot
from tests.simulation.actors import World, start
from tests.simulation.clocks import SimulatedClock
from tests.simulation.invariants import Invariants, begin_of
from tests.simulation.memory import remembering
from tests.simulation.objects import InlineExecutor
from tests.simulation.orders import order_of
from tests.simulation.rest import come_to_rest
from tests.simulation.scenes import Case
from tests.simulation.scheduler import Machine, Scheduler
from tests.simulation.stores import copy_of, limit_copies
from tests.simulation.targets import Service, SimulatedTarget
from tests.simulation.whole_flows import FLOWS, FencedRunner
from tests.simulation.without_prefect import without_prefect
from tests.simulation.workspaces import BEGINNINGS, beginning, opened

POLL_SECONDS = 10.0  # between two looks at a lock; each second of waiting would be turns that decide nothing
_FLOWS = frozenset(FLOWS)


class Outcome(NamedTuple):
    """The end of an interleaving; no violation is an empty text."""

    case: Case
    violation: str
    scheduler: Scheduler


class Theatre:
    """This process as the place of simulations: its clock and its thread pools are simulated ones."""

    def __init__(self) -> None:
        self.clock, self.service = SimulatedClock(), Service()

    @contextlib.contextmanager
    def open(self) -> Iterator[Theatre]:
        """Put the clock and the thread pools in place inside the block."""
        logging.disable(logging.CRITICAL)
        copy_of("", {})  # makes the folder of copies before processes are forked, which share it
        with contextlib.ExitStack() as held:
            held.callback(logging.disable, logging.NOTSET)
            for name in BEGINNINGS:
                beginning(name)  # by the true clock
            held.enter_context(keep_time_by(self.clock))
            held.enter_context(patch.object(base, "POLL_SECONDS", POLL_SECONDS))
            held.enter_context(patch.object(tasks.publish, "ASK_SECONDS", POLL_SECONDS))
            for module in (s3_store, s3_transfers, snapshot):
                held.enter_context(patch.object(module, "ThreadPoolExecutor", InlineExecutor))
            held.enter_context(remembering())
            for module in (lease, lineage_hold):
                held.enter_context(patch.object(module, "threading", self.clock))
            held.enter_context(without_prefect())
            held.enter_context(self.service.open())
            gc.collect()
            gc.freeze()  # else each collection goes through all imported modules
            yield self

    def play(self, case: Case, tracing: bool = False) -> Outcome:
        """Run one interleaving to its end, then bring the workspace to rest and check it."""
        random.seed(case.seed)  # of the pauses between requests, in the code under test
        limit_copies()
        lease._seen.clear()
        rng = random.Random(case.seed)
        workspace = beginning(case.beginning)
        order = order_of(case.order, rng, case.commands, case.stops)
        objects, scheduler = workspace.objects.copy(), Scheduler(rng, case.disturbances, order, tracing)
        objects.scheduler, objects.all_are_turns = scheduler, not _FLOWS.isdisjoint(case.commands)
        apart = 0.01 if case.order == "preempted" else 1.0  # seconds: there the order decides who begins
        machines = (Machine("one", 1000.0), Machine("two", 50_000.0))
        with self.clock.of(scheduler), opened(objects, case.rules, FencedRunner) as store:
            invariants = Invariants(objects, scheduler, begin_of(workspace.objects))
            self.service.target = SimulatedTarget(store, objects, invariants.left_at)
            world = World(workspace, objects, store, self.service.target)
            moments = [rng.random() * apart for _ in case.commands]
            for name, moment in zip(case.commands, sorted(moments) if case.stops else moments, strict=True):
                start(world, scheduler, name, rng.choice(machines), moment)
            scheduler.run()
            if not scheduler.violation:
                come_to_rest(world, scheduler, invariants, machines[0])
            if not scheduler.violation:
                invariants.at_end()
        return Outcome(case, scheduler.violation, scheduler)
