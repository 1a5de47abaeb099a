"""Work on the pieces of a span by all cores of a worker; the results come in the order of the pieces.

Python computes on one core at a time. So processes of their own judge, normalise and hash the texts of a span, piece by
piece, while this one reads, writes and counts.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait
from types import TracebackType
from typing import TypeVar

from tasks.foundation.errors import HostError
from tasks.worker.process.threads import own_cores

MANY_ROWS = 300_000  # fewer are done before other processes, which load their libraries first, are of use
AHEAD = 2  # pieces for each process, so that none waits for this one

T = TypeVar("T")
R = TypeVar("R")


class Cores:
    """The processes of one worker. They begin with the first work on many rows, and end with the block."""

    def __init__(self, modules: Sequence[str]) -> None:
        """`modules`: loaded once for all processes, which are forked from one that has them."""
        self._modules = modules
        self._cores = own_cores()
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Cores:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=error is None, cancel_futures=True)

    def map(self, work: Callable[[T], R], pieces: Iterable[T], rows: int) -> Iterator[tuple[T, R]]:
        """Yield each piece with the result of `work`, in the order of the pieces.

        Args:
            work: a function of a module, or a partial of one; it changes nothing outside of its result.
            rows: of all pieces; few of them are done in this process.

        Raises:
            HostError: a process was killed. An error of `work` is raised as it is.
        """
        if rows < MANY_ROWS or len(self._cores) < 2:
            for piece in pieces:
                yield piece, work(piece)
            return
        pool, begun = self._pool or self._start(), deque[tuple[T, Future[R]]]()
        try:
            for piece in pieces:
                begun.append((piece, pool.submit(work, piece)))
                while len(begun) > AHEAD * len(self._cores):
                    done, result = begun.popleft()
                    yield done, result.result()
            while begun:
                done, result = begun.popleft()
                yield done, result.result()
        except BrokenProcessPool as error:
            raise HostError(
                "a process that worked on a piece of the span was killed; if the machine had no memory left, give the "
                f"stage more for each of its {len(self._cores)} cores"
            ) from error

    def _start(self) -> ProcessPoolExecutor:
        # Not by a fork of this process: locks of its threads would be held for ever in the new one.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(self._modules))
        begin = functools.partial(_begin, frozenset(self._cores))
        self._pool = ProcessPoolExecutor(len(self._cores), context, begin)
        return self._pool


def _begin(cores: frozenset[int]) -> None:
    threading.Thread(target=_end_with_worker, daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the worker ends these
    with contextlib.suppress(AttributeError):  # not on Linux
        os.sched_setaffinity(0, cores)  # the process that forks may be bound to one


def _end_with_worker() -> None:
    """End this process when the worker does, even by SIGKILL; the process that forked it waits for it."""
    worker = multiprocessing.parent_process()
    assert worker is not None
    wait([worker.sentinel])
    os._exit(1)
