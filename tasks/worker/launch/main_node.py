"""The main node's launcher: starts when all nodes are there, and decides how the job ends and who is to blame.

One container alone is a main node without children.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from infra.store import Store
from tasks.contracts import JobSpec
from tasks.endings import CONSEQUENCES, Ending, root_cause
from tasks.errors import ERRORS, CancelledError, FailureClass, HangError, HostError, StageError, from_exit_code
from tasks.worker.launch.place import Place, processes_per_node
from tasks.worker.launch.processes import Report, Workers
from tasks.worker.launch.tether import Child, Children, End, Welcome
from tasks.worker.launch.told import Told

JOIN_SECONDS = 600.0  # machines of one job start minutes apart: each pulls its image
GRACE_SECONDS = 10.0  # for workers that are asked to end because others did
SAVE_SECONDS = 25.0  # for workers that may still save what they have; a container gets 30 from SIGTERM to SIGKILL
TICK_SECONDS = 0.1


@dataclass(frozen=True)
class Blame:
    """Why the job ends without a result, and because of which node."""

    node: int
    error: StageError

    def ending(self) -> Ending:
        return Ending(failure=self.error.failure, message=str(self.error), node=self.node, at=time.time())


class MainNode:
    """`unfit` says why this node's own host may not be used; empty: it may."""

    def __init__(
        self,
        place: Place,
        store: Store,
        spec: JobSpec,
        told: Told,
        unfit: str,
        start: Callable[[], Workers],
        join_seconds: float = JOIN_SECONDS,
    ) -> None:
        self._place, self._store, self._spec, self._told, self._start = place, store, spec, told, start
        self._silence_seconds = spec.config.batch.silence_seconds
        self._join_seconds = join_seconds
        # What other than the workers' own failure ends the job.
        self._blame = Blame(place.index, HostError(unfit)) if unfit else None
        self._workers_failed = False

    def run(self) -> Ending | None:
        """Run the job to its end; None: all is well.

        Raises:
            HostError: the port for the other nodes is taken.
        """
        with Children(self._place, self._silence_seconds) as children:
            reports = self._gather_and_watch(children)
            ending = self._judge(reports)
            children.tell(End(code=ERRORS[ending.failure]().policy.exit_code if ending else 0))
            return ending

    def _gather_and_watch(self, children: Children) -> dict[int, Report | None]:
        """How the workers of each node ended; None: they did not by themselves. Empty where none were started."""
        self._gather(children)
        if self._blame is not None:
            return {}
        children.tell(Welcome())
        workers = self._start()
        try:
            self._watch(children, workers)
        finally:
            workers.kill()  # nothing where they have ended
        others = {node: child.report for node, child in children.nodes.items()}
        return {self._place.index: workers.poll(), **others}

    def _gather(self, children: Children) -> None:
        deadline = time.monotonic() + self._join_seconds
        self._look_around(children)
        while children.missing and self._blame is None:
            children.wait(TICK_SECONDS)
            self._look_around(children)
            if self._blame is None and children.missing and time.monotonic() > deadline:
                self._blame = Blame(
                    children.missing[0],
                    HostError(
                        f"node {children.missing[0]} of {self._place.nodes} did not come within {self._join_seconds:g}"
                        " s; its log tells more, if its container started"
                    ),
                )

    def _watch(self, children: Children, workers: Workers) -> None:
        """Until this node's workers have ended, and those of the others too or there is no point in waiting."""
        patience_ends = None
        while True:
            children.wait(TICK_SECONDS)
            own = workers.poll()
            if self._told.times > 1:
                workers.kill()
            before = self._blame
            self._look_around(children)
            if self._blame is not None and self._blame is not before:
                workers.ask_to_end(GRACE_SECONDS if children.lost() else SAVE_SECONDS)
            others = [child.report for child in children.nodes.values()]
            failed = any(report is not None and not report.well for report in (own, *others))
            self._workers_failed = self._workers_failed or (failed and self._blame is None)
            if own is not None and (self._blame is not None or None not in others):
                return
            if (failed or own is not None) and patience_ends is None:
                # What made one fail makes the others fail, or their connections to it do.
                patience_ends = time.monotonic() + self._silence_seconds
            if patience_ends is not None and time.monotonic() > patience_ends:
                if own is not None:
                    return
                workers.ask_to_end(GRACE_SECONDS)

    def _look_around(self, children: Children) -> None:
        """Notice what ends the job from outside of its workers. Being told to go away explains a lost node too."""
        if self._told.times and not (self._blame and isinstance(self._blame.error, CancelledError)):
            what = f"{self._spec.stage}: the container was told to end (SIGTERM)"
            self._blame = Blame(self._place.index, CancelledError(what))
        if self._blame is None:
            self._blame = next((found for one in children.nodes.items() if (found := _trouble(*one))), None)
        if self._blame is None and (lost := children.lost()):
            self._blame = Blame(lost[0], HostError(lost[1]))

    def _judge(self, reports: dict[int, Report | None]) -> Ending | None:
        if reports and all(report is not None and report.well for report in reports.values()):
            return None
        blame = self._blame
        cancelled = blame is not None and isinstance(blame.error, CancelledError)
        if not cancelled or self._workers_failed:
            worker = self._blame_worker(reports)
            if worker and (blame is None or cancelled or worker.error.failure not in CONSEQUENCES):
                blame = worker
        return (blame or self._blame_node(reports)).ending()

    def _blame_worker(self, reports: dict[int, Report | None]) -> Blame | None:
        codes = self._codes(reports)
        tail = [
            f"[node {node}] {line}" if len(reports) > 1 else line
            for node, report in reports.items()
            if report is not None and not report.well
            for line in report.tail
        ]
        try:
            rank, error = root_cause(self._store, self._spec, codes, tail)
        except ValueError:
            return None
        return Blame(rank // processes_per_node(self._spec), error)

    def _blame_node(self, reports: dict[int, Report | None]) -> Blame:
        """Where no worker is to blame: torchrun failed before there were any, or a node's workers did not end."""
        for node, report in reports.items():
            if report is not None and not report.well:
                failure = FailureClass(report.agent.failure) if report.agent.failure else from_exit_code(report.code)
                what = report.agent.message or "\n".join((f"it ended with {report.code}; last lines:", *report.tail))
                return Blame(node, ERRORS[failure](f"{self._spec.stage}: torchrun on node {node} failed: {what}"))
        node = next(node for node, report in reports.items() if report is None)
        return Blame(
            node,
            HangError(
                f"{self._spec.stage}: the workers of node {node} did not end within {self._silence_seconds} s after "
                "those of the others"
            ),
        )

    def _codes(self, reports: dict[int, Report | None]) -> dict[int, int | None]:
        """Exit codes of all the workers that this launcher answers for, by their number among those of the stage."""
        each = processes_per_node(self._spec)
        if self._place.array_index is None:
            first, count = 0, self._spec.workers
        else:
            first, count = self._place.array_index * each, each
        codes: dict[int, int | None] = dict.fromkeys(range(first, first + count))
        for report in reports.values():
            if report is not None:
                codes |= {first + rank: code for rank, code in report.agent.codes.items()}
        return codes


def _trouble(node: int, child: Child) -> Blame | None:
    """What a child node says against itself."""
    if child.unfit:
        return Blame(node, HostError(f"{child.name}: {child.unfit}"))
    if child.terminating:
        return Blame(node, HostError(f"{child.name} was told to end (SIGTERM), as when its host goes away"))
    return None
