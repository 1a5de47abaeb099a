"""`millrace search`: the items of a release that are nearest to a text, found by a worker that holds its model."""

import contextlib
import functools
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from pydantic import Field

from flows.cli.results.worker_process import failure_of
from flows.cli.terminal.console import say, show_table
from flows.presentation.wording import count, shortened
from infra.store.base import Store
from tasks.contracts.runs import Release
from tasks.contracts.search import Answer, Hit, Question, Searchable
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record
from tasks.runs import releases

WORKER = (sys.executable, "-P", "-m", "tasks.worker.search")
END_SECONDS = 3.0
_SHOWN = 90  # characters of a text in the terminal


class SearchOutput(Record):
    """`millrace search`."""

    release: int
    model_version: str
    vectors: int = Field(description="the query was compared with all of them")
    query: str
    hits: tuple[Hit, ...]
    seconds: float = Field(description="to embed the query and to compare, after the start of the worker")


class Searcher:
    """A worker process that answers questions about one release; `searcher` starts and ends it."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str], release: Release) -> None:
        self._process, self._errors, self._release = process, errors, release

    @functools.cached_property
    def about(self) -> Searchable:
        """What it says once it has loaded the release. Raises as `ask`."""
        self._tell(self._release)
        return Searchable.model_validate_json(self._line())

    def ask(self, text: str, k: int) -> Answer:
        """Return the `k` nearest items. Raises StageError of the class that ended the worker, with its message."""
        _ = self.about
        self._tell(Question(text=text, k=k))
        return Answer.model_validate_json(self._line())

    def kill(self) -> None:
        """End the process, whatever it does; another thread may wait for its answer, which then raises."""
        self._process.kill()

    def _tell(self, record: Record) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended; what it said is read after this
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
        tempfile.TemporaryFile("w+") as errors,  # a pipe that nobody reads would fill up
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
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


def search(store: Store, text: str, number: int | None, k: int) -> SearchOutput:
    """Search a release, by default the current one.

    Raises:
        ConfigError: the text is empty, or there is no release.
        StoreError: the release, its model or its vectors are not there or damaged; names the file.
    """
    if not text.strip():
        raise ConfigError("the text to search for is empty")
    release = releases.current(store) if number is None else releases.read(store, number)
    if release is None:
        raise ConfigError(f"{store.uri} has no release to search yet; first: millrace run")
    with searcher(store, release) as worker:
        answer, about = worker.ask(text, k), worker.about
    return SearchOutput(
        release=about.release,
        model_version=about.model_version,
        vectors=about.vectors,
        query=text,
        hits=answer.hits,
        seconds=answer.seconds,
    )


def show(output: SearchOutput) -> None:
    """Print the hits for people."""
    rows: list[list[Any]] = [
        [f"{hit.score:.3f}", shortened(hit.item_id, _SHOWN), shortened(hit.text, _SHOWN)] for hit in output.hits
    ]
    show_table((">cosine", "item", "~text"), rows)
    say(f"the nearest of {count(output.vectors)} items in release {output.release}, in {output.seconds:.2f} s")
