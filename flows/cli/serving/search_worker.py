"""Worker processes that search a release: one that answers once, and one kept with a thread of its own between queries.

The thread starts, queries and replaces its worker. On Linux a worker ends with the thread that started it, so that must
not be the one of a request.
"""

import contextlib
import functools
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import IO, NamedTuple

from infra.store import kept_copies
from infra.store.base import Store
from tasks.contracts.runs import Release
from tasks.contracts.search import Answer, Question, Searchable
from tasks.foundation.errors import ERRORS, POLICIES, FailureClass, HostError, StageError
from tasks.foundation.records import Record

WORKER = (sys.executable, "-P", "-m", "tasks.worker.search")
END_SECONDS = 3.0


class Searcher:
    """A worker process that answers questions about one release; `searcher` starts and ends it."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str], release: Release) -> None:
        self._process, self._errors, self._release = process, errors, release

    @functools.cached_property
    def about(self) -> Searchable:
        """Return its first message, sent once it has loaded the release. Raises as `ask`."""
        self._tell(self._release)
        return Searchable.model_validate_json(self._line())

    def ask(self, text: str, k: int) -> Answer:
        """Return the `k` nearest items. Raises StageError of the class that ended the worker, with its message."""
        _ = self.about
        self._tell(Question(text=text, k=k))
        return Answer.model_validate_json(self._line())

    def kill(self) -> None:
        """Kill the process; a thread that waits for its answer gets an error."""
        self._process.kill()

    def _tell(self, record: Record) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; its error is read after this
            self._process.stdin.write(record.model_dump_json() + "\n")
            self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return line
        code = self._process.wait()
        self._errors.seek(0)
        raise failure_of(code, self._errors.read())


@contextlib.contextmanager
def searcher(store: Store, release: Release) -> Iterator[Searcher]:
    """Run a worker for a release inside the block. Raises StageError as `Searcher.ask` does."""
    command = [*WORKER, "--workspace", store.uri]  # the release may be too long for an argument
    with (
        contextlib.suppress(BrokenPipeError),  # a question that the worker did not live to read
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,  # a pipe that nobody reads would fill up
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            encoding="utf-8",
            env=kept_copies.environment(),
        ) as process,
    ):
        try:
            yield Searcher(process, errors, release)
        finally:
            _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:  # stopped, or its disk hangs
        process.kill()


def answered_once(module: str, store: Store, *records: Record | None) -> str:
    """Run a module of `tasks.worker`, such as `search.diff`, which reads records, one a line, and prints one.

    Returns:
        The line that it printed.

    Raises:
        StageError: of the class that ended the worker, with its message.
    """
    command = [sys.executable, "-P", "-m", f"tasks.worker.{module}", "--workspace", store.uri]
    lines = ("null" if record is None else record.model_dump_json(by_alias=True) for record in records)
    said = "".join(f"{line}\n" for line in lines)  # too long for arguments
    keeping = kept_copies.environment()
    done = subprocess.run(command, input=said, capture_output=True, text=True, encoding="utf-8", env=keeping)
    if done.returncode:
        raise failure_of(done.returncode, done.stderr)
    return done.stdout


def failure_of(code: int, said: str) -> StageError:
    """Return the error that a process ended with, from its exit code and its error output."""
    failure = next((f for f, policy in POLICIES.items() if policy.exit_code == code), FailureClass.CODE)
    return ERRORS[failure](said.strip() or f"the worker ended with status {code}")


ANSWER_SECONDS = 20.0  # a query takes a tenth of a second
START_SECONDS = 300.0  # a large release comes from a bucket
LAST_ANSWER_SECONDS = 5.0


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
            self._thread.join(LAST_ANSWER_SECONDS)

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
