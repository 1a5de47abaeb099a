"""The launchers of both kinds of node.

The main node starts once all nodes are connected, and decides the job's outcome and the faulty node; a single container
is a main node without children. A child node runs its workers on the main node's signal, and reports their end to it.
"""

import select
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from infra.root_cause import CONSEQUENCES, Ending, root_cause
from infra.store.base import Store
from tasks.contracts.jobs import JobSpec
from tasks.foundation.errors import (
    ERRORS,
    CancelledError,
    FailureClass,
    HangError,
    HostError,
    StageError,
    StoreError,
    from_exit_code,
)
from tasks.foundation.neuron_errors import classify_log, needs_another_machine
from tasks.runs.host_records import exclude, read_findings, strike
from tasks.worker.launch.node_link import (
    RETRY_SECONDS,
    Child,
    Children,
    Hello,
    JobEnd,
    Link,
    Terminating,
    Welcome,
    WorkersEnded,
    connect,
)
from tasks.worker.launch.this_node import ContainerPosition, Report, StopSignals, Workers, processes_per_node


def record_faulty_host(store: Store, spec: JobSpec, ending: Ending, host: str | None) -> None:
    """Exclude the host after broken hardware; record a strike after another fault of class HOST.

    Nothing is recorded for a node that merely disappeared, as machines come and go, or for findings of health, which
    records them itself.

    Args:
        host: of the node in `ending`; None: the node never connected.
    """
    named = classify_log(ending.message)
    if host is None or named is None or ending.failure is not FailureClass.HOST or named[0] is not FailureClass.HOST:
        return
    remember = exclude if needs_another_machine(ending.message) else strike
    try:
        if read_findings(store, spec) is None:
            reason = f"{spec.stage.value}: {named[1]}"
            remember(store, host, reason, spec.run_key, spec.config.health, time.time())
    except (OSError, StoreError) as error:  # must not hide the original failure
        print(f"the record of host {host} could not be written: {error}", file=sys.stderr, flush=True)


GRACE_SECONDS = 10.0  # for workers to end after others ended
SAVE_SECONDS = 25.0  # for workers to save a checkpoint; a container gets 30 s from SIGTERM to SIGKILL
TICK_SECONDS = 0.1


@dataclass(frozen=True)
class JobFailure:
    """The job's failure and the node that caused it."""

    node: int
    error: StageError

    def ending(self) -> Ending:
        return Ending(failure=self.error.failure, message=str(self.error), node=self.node, at=time.time())


class MainNode:
    """The main node. `unfit`: reason not to use its own host; empty if usable."""

    def __init__(
        self,
        position: ContainerPosition,
        store: Store,
        spec: JobSpec,
        host: str,
        signals: StopSignals,
        unfit: str,
        start: Callable[[], Workers],
        rendezvous_timeout_seconds: float,
    ) -> None:
        self._position, self._store, self._spec, self._signals, self._start = position, store, spec, signals, start
        self._host = host
        self._timeout_seconds = spec.config.batch.heartbeat_timeout_seconds
        self._join_seconds = rendezvous_timeout_seconds
        # A failure that did not start in the workers.
        self._failure = JobFailure(position.index, HostError(unfit)) if unfit else None
        self._workers_failed = False

    def run(self) -> Ending | None:
        """Run the job to its end; return its failure, or None after success.

        Raises:
            HostError: the port for the other nodes is taken.
        """
        with Children(self._position, self._timeout_seconds) as children:
            reports = self._gather_and_watch(children)
            ending = self._judge(reports)
            if ending is not None:
                hosts = {self._position.index: self._host, **{node: one.host for node, one in children.nodes.items()}}
                # Before nodes decide to terminate:
                record_faulty_host(self._store, self._spec, ending, hosts.get(ending.node))
            children.send(JobEnd(code=ERRORS[ending.failure]().policy.exit_code if ending else 0))
            return ending

    def _gather_and_watch(self, children: Children) -> dict[int, Report | None]:
        """Return each node's report on its workers' end, None if they did not end; empty if no workers started."""
        self._gather(children)
        if self._failure is not None:
            return {}
        children.send(Welcome())
        workers = self._start()
        try:
            self._watch(children, workers)
        finally:
            workers.kill()  # does nothing if they have ended
        others = {node: child.report for node, child in children.nodes.items()}
        return {self._position.index: workers.poll(), **others}

    def _gather(self, children: Children) -> None:
        deadline = time.monotonic() + self._join_seconds
        self._check_from_outside(children)
        while children.missing and self._failure is None:
            children.wait(TICK_SECONDS)
            self._check_from_outside(children)
            if self._failure is None and children.missing and time.monotonic() > deadline:
                self._failure = JobFailure(
                    children.missing[0],
                    HostError(
                        f"node {children.missing[0]} of {self._position.nodes} did not connect within "
                        f"batch.rendezvous_timeout_seconds = {self._join_seconds:g}; "
                        "see its log, if its container started"
                    ),
                )

    def _watch(self, children: Children, workers: Workers) -> None:
        """Wait for the workers of all nodes; only for this node's workers once waiting for the others is useless."""
        wait_ends = None
        while True:
            children.wait(TICK_SECONDS)
            own = workers.poll()
            if self._signals.count > 1:
                workers.kill()
            before = self._failure
            self._check_from_outside(children)
            if self._failure is not None and self._failure is not before:
                workers.ask_to_end(GRACE_SECONDS if children.lost() else SAVE_SECONDS)
            others = [child.report for child in children.nodes.values()]
            failed = any(report is not None and not report.succeeded for report in (own, *others))
            self._workers_failed = self._workers_failed or (failed and self._failure is None)
            if own is not None and (self._failure is not None or None not in others):
                return
            if (failed or own is not None) and wait_ends is None:
                # The others will fail soon too, by the same cause or the lost connection.
                wait_ends = time.monotonic() + self._timeout_seconds
            if wait_ends is not None and time.monotonic() > wait_ends:
                if own is not None:
                    return
                workers.ask_to_end(GRACE_SECONDS)

    def _check_from_outside(self, children: Children) -> None:
        """Look for a failure outside the workers: SIGTERM here (which also explains a lost node), or a child node."""
        if self._signals.count and not (self._failure and isinstance(self._failure.error, CancelledError)):
            what = f"{self._spec.stage}: the container received SIGTERM"
            self._failure = JobFailure(self._position.index, CancelledError(what))
        if self._failure is None:
            self._failure = next(
                (found for item in children.nodes.items() if (found := _reported_failure(*item))), None
            )
        if self._failure is None and (lost := children.lost()):
            self._failure = JobFailure(lost[0], HostError(lost[1]))

    def _judge(self, reports: dict[int, Report | None]) -> Ending | None:
        if reports and all(report is not None and report.succeeded for report in reports.values()):
            return None
        failure = self._failure
        cancelled = failure is not None and isinstance(failure.error, CancelledError)
        if not cancelled or self._workers_failed:
            worker = self._worker_failure(reports)
            if worker and (failure is None or cancelled or worker.error.failure not in CONSEQUENCES):
                failure = worker
        return (failure or self._node_failure(reports)).ending()

    def _worker_failure(self, reports: dict[int, Report | None]) -> JobFailure | None:
        codes = self._codes(reports)
        tail = [
            f"[node {node}] {line}" if len(reports) > 1 else line
            for node, report in reports.items()
            if report is not None and not report.succeeded
            for line in report.tail
        ]
        try:
            rank, error = root_cause(self._store, self._spec, codes, tail)
        except ValueError:
            return None
        return JobFailure(rank // processes_per_node(self._spec), error)

    def _node_failure(self, reports: dict[int, Report | None]) -> JobFailure:
        """Return the failure if no worker caused it: torchrun failed to start workers, or some did not end."""
        for node, report in reports.items():
            if report is not None and not report.succeeded:
                failure = FailureClass(report.agent.failure) if report.agent.failure else from_exit_code(report.code)
                text = report.agent.message or "\n".join((f"exit code {report.code}; last lines:", *report.tail))
                return JobFailure(node, ERRORS[failure](f"{self._spec.stage}: torchrun on node {node} failed: {text}"))
        node = next(node for node, report in reports.items() if report is None)
        return JobFailure(
            node,
            HangError(
                f"{self._spec.stage}: the workers of node {node} did not end within {self._timeout_seconds} s after "
                "those of the others"
            ),
        )

    def _codes(self, reports: dict[int, Report | None]) -> dict[int, int | None]:
        """Return the exit code of every worker of this container or job, by global rank."""
        each = processes_per_node(self._spec)
        if self._position.array_index is None:
            first, count = 0, self._spec.workers
        else:
            first, count = self._position.array_index * each, each
        codes: dict[int, int | None] = dict.fromkeys(range(first, first + count))
        for report in reports.values():
            if report is not None:
                codes |= {first + rank: code for rank, code in report.agent.codes.items()}
        return codes


def _reported_failure(node: int, child: Child) -> JobFailure | None:
    """Return the failure that a child node reported about itself, if any."""
    if child.unfit:
        return JobFailure(node, HostError(f"{child.name}: {child.unfit}"))
    if child.terminating:
        return JobFailure(node, HostError(f"{child.name} received SIGTERM, as when its host is taken away"))
    return None


class ChildNode:
    """One child node. `unfit`: reason not to use its host; empty if usable."""

    def __init__(
        self,
        position: ContainerPosition,
        spec: JobSpec,
        host: str,
        signals: StopSignals,
        unfit: str,
        start: Callable[[], Workers],
        rendezvous_timeout_seconds: float,
    ) -> None:
        self._position, self._spec, self._signals, self._start = position, spec, signals, start
        self._hello = Hello(
            job=position.job, try_number=position.try_number, node=position.node, host=host, unfit=unfit
        )
        self._timeout_seconds = spec.config.batch.heartbeat_timeout_seconds
        self._join_seconds = rendezvous_timeout_seconds

    def run(self) -> int:
        """Run this node's workers to the end of the job; return the job's exit code, sent by the main node.

        Raises:
            HostError: the main node is absent or was lost.
            CancelledError: this container received SIGTERM.
        """
        link = self._join()
        try:
            code = self._wait_for_welcome(link)
            return self._watch(link) if code is None else code
        finally:
            link.close()

    def _join(self) -> Link:
        deadline = time.monotonic() + self._join_seconds
        while (link := connect(self._position, self._timeout_seconds)) is None:
            self._stop_if_signalled()
            if time.monotonic() > deadline:
                raise HostError(
                    f"node {self._position.node}: no main node at {self._position.main_address}:"
                    f"{self._position.link_port} within batch.rendezvous_timeout_seconds = {self._join_seconds:g}; "
                    "see its log, if its container started"
                )
            time.sleep(RETRY_SECONDS)
        link.send(self._hello)
        return link

    def _wait_for_welcome(self, link: Link) -> int | None:
        """Return None once all nodes are connected, or the exit code of a job that ends earlier."""
        while True:
            self._wait(link)
            for message in link.receive():
                if isinstance(message, JobEnd):
                    return message.code
                if isinstance(message, Welcome):
                    return None
            self._stop_if_signalled()
            if (lost := self._lost(link)) is not None:
                raise lost

    def _watch(self, link: Link) -> int:
        workers = self._start()
        end: int | None = None  # the job's exit code, once known
        why: StageError | None = None  # this node's error if the main node sends nothing
        terminating_since = None
        reported = False
        try:
            while True:
                self._wait(link)
                for message in link.receive():
                    if isinstance(message, JobEnd):
                        end = message.code
                        workers.ask_to_end(GRACE_SECONDS)
                report = workers.poll()
                if report is not None and not reported:
                    link.send(WorkersEnded(report=report))
                    reported = True
                if self._signals.count and terminating_since is None:
                    # The workers keep running: the main node's workers need them until a step at which all can stop.
                    link.send(Terminating())
                    terminating_since = time.monotonic()
                if self._signals.count > 1:
                    workers.kill()
                if terminating_since is not None and time.monotonic() - terminating_since > SAVE_SECONDS:
                    why = why or self._cancelled()
                if end is None:
                    why = why or self._lost(link)
                if why is not None:
                    workers.ask_to_end(GRACE_SECONDS)
                if report is not None and end is not None:
                    return end
                if report is not None and why is not None:
                    if report.succeeded and isinstance(why, HostError):
                        return 0  # the main node succeeded, but ended before it could report
                    raise self._cancelled() if self._signals.count else why
        finally:
            workers.kill()  # does nothing if they have ended

    def _wait(self, link: Link) -> None:
        if link.closed:
            time.sleep(TICK_SECONDS)
        else:
            select.select([link], [], [], TICK_SECONDS)
        link.send_heartbeat()

    def _lost(self, link: Link) -> HostError | None:
        if not link.closed and link.silence <= self._timeout_seconds:
            return None
        how = "closed its connection" if link.closed else "has been silent"
        return HostError(
            f"node {self._position.node}: the main node at {self._position.main_address} {how}; last "
            f"message {link.silence:.1f} s ago"
        )

    def _stop_if_signalled(self) -> None:
        if self._signals.count:
            raise self._cancelled()

    def _cancelled(self) -> CancelledError:
        return CancelledError(f"{self._spec.stage}: the container received SIGTERM")
