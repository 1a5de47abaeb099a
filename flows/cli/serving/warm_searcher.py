"""One search worker of `millrace serve` with a thread of its own, which starts, queries and replaces it.

On Linux a worker ends with the thread that started it, so that must not be the one of a request.
"""

import contextlib
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import NamedTuple

from flows.cli.serving.search_worker import Searcher, searcher
from infra.store.base import Store
from tasks.contracts.runs import Release
from tasks.contracts.search import Answer
from tasks.foundation.errors import HostError, StageError

ANSWER_SECONDS = 20.0  # a query takes a tenth of a second
START_SECONDS = 300.0  # a large release comes from a bucket
END_SECONDS = 5.0


class _Query(NamedTuple):
    text: str
    k: int
    answer: Future[Answer | StageError]


class WarmSearcher:
    """The worker of one release: started by the first query, again by the next one if it died."""

    def __init__(self, store: Store, release: Release) -> None:
        self._store, self._release = store, release
        self._queries: queue.SimpleQueue[_Query | None] = queue.SimpleQueue()
        self._open = 0  # queries without an answer
        self._lock = threading.Lock()
        self._closed = False
        self._worker: Searcher | None = None
        self._process = contextlib.ExitStack()
        self._thread = threading.Thread(target=self._run, name=f"searcher-{release.number}", daemon=True)
        self._thread.start()

    @property
    def idle(self) -> bool:
        with self._lock:
            return self._open == 0

    def submit(self, text: str, k: int) -> Future[Answer | StageError]:
        """Queue a query."""
        query = _Query(text, k, Future())
        with self._lock:
            self._open += 1
        self._queries.put(query)
        return query.answer

    def close(self, now: bool = False) -> None:
        """End the worker after its queued queries; `now`: kill it, and wait for its end."""
        self._queries.put(None)
        if now:
            with self._lock:
                self._closed = True
                if self._worker is not None:
                    self._worker.kill()
            self._thread.join(END_SECONDS)

    def _run(self) -> None:
        with self._process:
            for query in iter(self._queries.get, None):
                try:
                    answer: Answer | StageError | BaseException = self._answer(query)
                except StageError as error:
                    answer = error
                except Exception as error:  # the page of this query shows it
                    answer = error
                with self._lock:
                    self._open -= 1
                if isinstance(answer, Answer | StageError):
                    query.answer.set_result(answer)
                else:
                    query.answer.set_exception(answer)

    def _answer(self, query: _Query) -> Answer:
        if self._worker is not None:
            try:
                return self._ask(self._worker, query)
            except _GivenUpError:
                raise
            except StageError:  # it has died since the last query
                self._end()
        return self._ask(self._start(), query)

    def _start(self) -> Searcher:
        if self._closed:
            raise HostError("the pages are about to end")
        worker = self._process.enter_context(searcher(self._store, self._release))
        with self._lock:
            self._worker = worker
            if self._closed:
                worker.kill()
        try:
            with self._patience(worker, START_SECONDS, "start"):
                _ = worker.about
        except StageError:
            self._end()
            raise
        return worker

    def _ask(self, worker: Searcher, query: _Query) -> Answer:
        try:
            with self._patience(worker, ANSWER_SECONDS, "answer"):
                return worker.ask(query.text, query.k)
        except _GivenUpError:
            self._end()
            raise

    def _end(self) -> None:
        with self._lock:
            self._worker = None
        self._process.close()

    @contextlib.contextmanager
    def _patience(self, worker: Searcher, seconds: float, what: str) -> Iterator[None]:
        """Kill a worker that takes longer. Raises HostError."""
        given_up = threading.Event()

        def give_up() -> None:
            given_up.set()
            worker.kill()

        timer = threading.Timer(seconds, give_up)
        timer.daemon = True
        timer.start()
        try:
            yield
        except StageError as error:
            if given_up.is_set():
                raise _GivenUpError(
                    f"the search worker of release {self._release.number} did not {what} within {seconds:.0f} s, so it "
                    "was ended; the next query starts another"
                ) from error
            raise
        finally:
            timer.cancel()


class _GivenUpError(HostError):
    """A worker that hung. It is not asked again for the same query."""
