"""Search workers that `millrace serve` keeps between queries, for the most recently asked releases."""

import threading
from collections.abc import Sequence
from concurrent.futures import Future

from flows.cli.serving.warm_searcher import WarmSearcher
from infra.store.base import Store
from tasks.contracts.runs import Release
from tasks.contracts.search import Answer
from tasks.foundation.errors import HostError, StageError

MOST = 4  # workers: each holds a model and its vectors; two people may compare two pairs of releases


class WarmSearchers:
    """Answers from releases at once, several threads may ask. `close` ends the workers at once."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._closed = False
        self._workers: dict[int, WarmSearcher] = {}  # by number of the release, the one that was asked last at the end

    def ask(self, releases: Sequence[Release], text: str, k: int) -> list[Answer | StageError]:
        """Return each release's `k` nearest items, or its error. Takes seconds if a worker has to start.

        A worker is kept for each of the last `MOST` releases; the least recently used idle worker makes room for a new
        one. A worker that has died is started again.
        """
        answers = [self._submit(release, text, k) for release in releases]
        return [answer.result() for answer in answers]

    def close(self) -> None:
        """End all workers, also in the middle of a query, which then ends with an error."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            workers = tuple(self._workers.values())
        for worker in workers:
            worker.close(now=True)

    def _submit(self, release: Release, text: str, k: int) -> Future[Answer | StageError]:
        with self._changed:
            while not (
                self._closed or release.number in self._workers or len(self._workers) < MOST or self._end_idle()
            ):
                self._changed.wait()
            if self._closed:
                raise HostError("the pages are about to end")
            worker = self._workers.pop(release.number, None) or WarmSearcher(self._store, release)
            self._workers[release.number] = worker
            answer = worker.submit(text, k)
        answer.add_done_callback(self._tell)
        return answer

    def _end_idle(self) -> bool:
        """End the least recently used idle worker; return False if none is idle."""
        number = next((number for number, worker in self._workers.items() if worker.idle), None)
        if number is None:
            return False
        self._workers.pop(number).close()
        return True

    def _tell(self, _: Future[Answer | StageError]) -> None:
        with self._changed:
            self._changed.notify_all()
