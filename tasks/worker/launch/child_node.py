"""The launcher of a node that is not the main one: does what that one says, and tells it how its workers fare."""

from __future__ import annotations

import select
import time
from collections.abc import Callable

from tasks.contracts import JobSpec
from tasks.errors import CancelledError, HostError, StageError
from tasks.worker.launch.main_node import GRACE_SECONDS, JOIN_SECONDS, SAVE_SECONDS, TICK_SECONDS
from tasks.worker.launch.place import Place
from tasks.worker.launch.processes import Workers
from tasks.worker.launch.tether import (
    RETRY_SECONDS,
    End,
    Ended,
    Hello,
    Link,
    Terminating,
    Welcome,
    connect,
)
from tasks.worker.launch.told import Told


class ChildNode:
    """`unfit` says why this node's host may not be used; empty: it may."""

    def __init__(
        self,
        place: Place,
        spec: JobSpec,
        host: str,
        told: Told,
        unfit: str,
        start: Callable[[], Workers],
        join_seconds: float = JOIN_SECONDS,
    ) -> None:
        self._place, self._spec, self._told, self._start = place, spec, told, start
        self._hello = Hello(job=place.job, try_number=place.try_number, node=place.node, host=host, unfit=unfit)
        self._silence_seconds = spec.config.batch.silence_seconds
        self._join_seconds = join_seconds

    def run(self) -> int:
        """Run this node's workers to the end of the job; returns what the main node says the job ends with.

        Raises:
            HostError: the main node is not there, or not any more.
            CancelledError: this container was told to end.
        """
        link = self._join()
        try:
            code = self._wait_for_welcome(link)
            return self._watch(link) if code is None else code
        finally:
            link.close()

    def _join(self) -> Link:
        deadline = time.monotonic() + self._join_seconds
        while (link := connect(self._place, self._silence_seconds)) is None:
            self._stop_if_told()
            if time.monotonic() > deadline:
                raise HostError(
                    f"node {self._place.node}: no main node at {self._place.main_address}:{self._place.tether_port} "
                    f"within {self._join_seconds:g} s; its log tells more, if its container started"
                )
            time.sleep(RETRY_SECONDS)
        link.send(self._hello)
        return link

    def _wait_for_welcome(self, link: Link) -> int | None:
        """None once all nodes are there; what the job ends with where it does before that."""
        while True:
            self._wait(link)
            for message in link.receive():
                if isinstance(message, End):
                    return message.code
                if isinstance(message, Welcome):
                    return None
            self._stop_if_told()
            if (lost := self._lost(link)) is not None:
                raise lost

    def _watch(self, link: Link) -> int:
        workers = self._start()
        end: int | None = None  # what the job ends with, once that is known
        why: StageError | None = None  # what ends this node where the main one says nothing
        terminating_since = None
        reported = False
        try:
            while True:
                self._wait(link)
                for message in link.receive():
                    if isinstance(message, End):
                        end = message.code
                        workers.ask_to_end(GRACE_SECONDS)
                report = workers.poll()
                if report is not None and not reported:
                    link.send(Ended(report=report))
                    reported = True
                if self._told.times and terminating_since is None:
                    # The workers go on: without them, the main node's could not come to where they can be stopped.
                    link.send(Terminating())
                    terminating_since = time.monotonic()
                if self._told.times > 1:
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
                    if report.well and isinstance(why, HostError):
                        return 0  # the main node had nothing left to say
                    raise self._cancelled() if self._told.times else why
        finally:
            workers.kill()  # nothing where they have ended

    def _wait(self, link: Link) -> None:
        if link.closed:
            time.sleep(TICK_SECONDS)
        else:
            select.select([link], [], [], TICK_SECONDS)
        link.beat()

    def _lost(self, link: Link) -> HostError | None:
        if not link.closed and link.silence <= self._silence_seconds:
            return None
        how = "closed its connection" if link.closed else "has been silent"
        return HostError(
            f"node {self._place.node}: the main node at {self._place.main_address} {how}; last heard "
            f"{link.silence:.1f} s ago"
        )

    def _stop_if_told(self) -> None:
        if self._told.times:
            raise self._cancelled()

    def _cancelled(self) -> CancelledError:
        return CancelledError(f"{self._spec.stage}: the container was told to end (SIGTERM)")
