"""Worker processes: a searcher of a release, workers that answer once, and the error of one that failed."""

import contextlib
import functools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

from infra.store.base import Store
from tasks.contracts.runs import Release
from tasks.contracts.search import Answer, Question, Searchable
from tasks.foundation.errors import ERRORS, POLICIES, FailureClass, StageError
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
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, encoding="utf-8"
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
    """Run a module of the search workers, which reads records, one a line, and prints one.

    Returns:
        The line that it printed.

    Raises:
        StageError: of the class that ended the worker, with its message.
    """
    command = [sys.executable, "-P", "-m", f"tasks.worker.search.{module}", "--workspace", store.uri]
    lines = ("null" if record is None else record.model_dump_json(by_alias=True) for record in records)
    said = "".join(f"{line}\n" for line in lines)  # too long for arguments
    done = subprocess.run(command, input=said, capture_output=True, text=True, encoding="utf-8")
    if done.returncode:
        raise failure_of(done.returncode, done.stderr)
    return done.stdout


def failure_of(code: int, said: str) -> StageError:
    """Return the error that a process ended with, from its exit code and its error output."""
    failure = next((f for f, policy in POLICIES.items() if policy.exit_code == code), FailureClass.CODE)
    return ERRORS[failure](said.strip() or f"the worker ended with status {code}")
