"""The launcher of a child node: runs its workers on the main node's signal, and reports their end to it."""

import select
import time
from collections.abc import Callable

from tasks.contracts.jobs import JobSpec
from tasks.foundation.errors import CancelledError, HostError, StageError
from tasks.worker.launch.container_position import ContainerPosition
from tasks.worker.launch.main_node import GRACE_SECONDS, SAVE_SECONDS, TICK_SECONDS
from tasks.worker.launch.node_link import (
    RETRY_SECONDS,
    Hello,
    JobEnd,
    Link,
    Terminating,
    Welcome,
    WorkersEnded,
    connect,
)
from tasks.worker.launch.processes import StopSignals, Workers


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
