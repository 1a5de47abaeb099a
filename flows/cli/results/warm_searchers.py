"""Search workers that stay between the queries of `millrace serve`: those of the releases that were asked last."""

import contextlib
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from flows.cli.results.searching import Searcher, searcher
from infra.store.base import Store
from tasks.contracts.runs import Release
from tasks.contracts.search import Answer
from tasks.foundation.errors import StageError

MOST = 2  # workers: each holds a model and its vectors


class WarmSearchers:
    """Answers from one or two releases at once, one query after the other. `close` ends the workers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asking = threading.Lock()
        self._workers: dict[int, tuple[Searcher, contextlib.ExitStack]] = {}  # by number of the release
        # On Linux a worker ends with the thread that started it, so that must not be the one of a request.
        self._threads = ThreadPoolExecutor(MOST, thread_name_prefix="searcher")

    def ask(self, releases: Sequence[Release], text: str, k: int) -> list[Answer | StageError]:
        """Return each release's `k` nearest items, or why it can't answer. Takes seconds where a worker starts.

        A worker of a release that is not asked is ended; one that has died is started again.
        """
        with self._asking:
            for number in self._workers.keys() - {release.number for release in releases}:
                self._end(number)
            return list(self._threads.map(lambda release: self._answer(release, text, k), releases))

    def close(self) -> None:
        """End all workers, after the query that is being answered."""
        with self._asking:
            for number in tuple(self._workers):
                self._end(number)
            self._threads.shutdown()

    def _answer(self, release: Release, text: str, k: int) -> Answer | StageError:
        if release.number in self._workers:
            worker, _ = self._workers[release.number]
            with contextlib.suppress(StageError):  # it has died since the last query
                return worker.ask(text, k)
            self._end(release.number)
        try:
            return self._start(release).ask(text, k)
        except StageError as error:
            return error

    def _start(self, release: Release) -> Searcher:
        with contextlib.ExitStack() as stack:
            worker = stack.enter_context(searcher(self._store, release))
            self._workers[release.number] = worker, stack.pop_all()
        return worker

    def _end(self, number: int) -> None:
        _, stack = self._workers.pop(number)
        stack.close()
