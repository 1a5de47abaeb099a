"""Pages `/`, `/changes` and `/releases` of `millrace serve`, and the search workers that it keeps between queries."""

import re
import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from concurrent.futures import Future

from flows.cli.serving.search_worker import WarmSearcher
from flows.presentation import html
from flows.presentation.changes import changes_section
from flows.presentation.model import Cell, Page
from flows.presentation.releases import MOST_ROWS, Listed, releases_html
from flows.presentation.search import (
    CHANGES,
    MOST_HITS,
    TO_HISTORY,
    TO_LINEAGES,
    TO_RELEASES,
    TO_SEARCH,
    Asked,
    SearchedRelease,
    search_html,
    to_map,
)
from flows.presentation.wording import shortened
from infra.store.base import Store
from tasks.contracts.runs import Release
from tasks.contracts.search import Answer
from tasks.foundation.errors import ConfigError, HostError, StageError, StoreError
from tasks.foundation.nouns import plural
from tasks.runs import releases
from tasks.runs.results import read_changes

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


MOST_OFFERED = 30  # releases to choose from, the newest; an address may name any other


class SearchPages:
    """The pages of one workspace on its releases; several threads may ask at once. `close` ends the workers."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._searchers = WarmSearchers(store)
        self._known: dict[int, Release] = {}  # a release never changes

    def search(self, query: str) -> bytes:
        """Return the page that answers a query string such as `q=lamp&k=10&with=3`.

        Problems are sentences on the page. Raises StoreError: the current release is not readable.
        """
        asked, trouble = _understood(query)
        if (hold := releases.hold_of(self._store)) is not None:
            trouble.append(hold.sentence)
        current = releases.current(self._store)
        if current is None:
            trouble += [releases.no_current(self._store)] if releases.numbers(self._store) else []
            return search_html(self._store.uri, asked, None, None, (), trouble)
        number = asked.compared if asked.compared is not None else current.previous
        others = self._others(current, number, trouble)
        compared = next((SearchedRelease(release) for release in others if release.number == number), None)
        now = SearchedRelease(current)
        if asked.text:
            asked_of = [side.release for side in (now, compared) if side is not None]
            first, *second = self._searchers.ask(asked_of, asked.text, asked.k)
            now = _answered(now, first)
            compared = _answered(compared, second[0]) if compared else None
        return search_html(self._store.uri, asked, now, compared, others, trouble)

    def changes(self, number: int | None) -> bytes | None:
        """Return the page of changes of a release, by default the current one; None if it does not exist.

        Raises:
            StoreError: the release, or the record of its changes, is not readable; names the file.
        """
        if number is not None and number not in releases.numbers(self._store):
            return None
        release = releases.current(self._store) if number is None else releases.read(self._store, number)
        changes = read_changes(self._store, release.run_key, release.number) if release else None
        page = Page(
            title=f"Release {release.number}: what changed" if release else "What changed",
            workspace=self._store.uri,
            key="",
            heading=f"Release {release.number}" if release else "What changed",
            summary=_summary(release, on_record=changes is not None),
            about=(),
            state=None,
            tiles=(),
            boxes=(),
            sections=(changes_section(changes),) if changes else (),
            near=(
                TO_SEARCH,
                *self._last_comparison(release),
                TO_RELEASES,
                *(to_map(release.number) if release else ()),
                TO_HISTORY,
                *TO_LINEAGES,
            ),
        )
        return html.render(page)

    def _last_comparison(self, release: Release | None) -> tuple[Cell, ...]:
        """Return the link from a refresh to the release that brought its model, whose changes are of two models."""
        if release is None or release.refreshed is None:
            return ()
        brought = releases.origin(self._store, release.model.version)
        return (
            (Cell(f"What changed with its model, in release {brought.number}", link=f"{CHANGES}/{brought.number}"),)
            if brought
            else ()
        )

    def releases(self) -> bytes:
        """Return the page of the newest releases; unreadable ones are sentences on it.

        Raises:
            StoreError: the pointer to the current release is damaged.
        """
        _, pointer = releases.read_pointer(self._store)
        numbers = releases.numbers(self._store)
        found: list[Release] = []
        problems: list[str] = []
        for number in reversed(numbers[-MOST_ROWS:]):
            try:
                found.append(self._read(number))
            except StoreError as error:
                problems.append(str(error))
        current = pointer.release if pointer is not None else None
        hold = releases.hold_of(self._store)
        listed = Listed(found, len(numbers), current, releases.pruned(self._store), hold, problems)
        return releases_html(self._store.uri, listed)

    def close(self) -> None:
        self._searchers.close()

    def _others(self, current: Release, chosen: int | None, trouble: list[str]) -> tuple[Release, ...]:
        """Return the newest releases but the current one, the newest first; the chosen one in any case."""
        numbers = [number for number in reversed(releases.numbers(self._store)) if number != current.number]
        wanted = numbers[:MOST_OFFERED]
        if chosen is not None and chosen not in (*wanted, current.number):
            wanted.append(chosen)
        found = []
        for number in wanted:
            try:
                found.append(self._read(number))
            except (ConfigError, StoreError) as error:
                trouble.append(f"Release {number} can't be shown: {error}")
        return tuple(found)

    def _read(self, number: int) -> Release:
        if number not in self._known:
            self._known[number] = releases.read(self._store, number)
        return self._known[number]


def _summary(release: Release | None, on_record: bool) -> str:
    if release is None:
        return "There is no release yet. The first model that the gates accept makes one: millrace run"
    if on_record:
        by = release.model.of_items.version
        return f"Made from data up to span {release.span.name}; {plural(release.vectors, 'vector')} by {by}."
    if release.previous is None:
        return "It is the first release, so there is nothing to compare it with."
    return "The files of the release before it were gone when it was made, so what changed is not on record."


def parameters(query: str) -> dict[str, str]:
    """Return the parameters of a query string, the last value of each; none if there are too many."""
    try:
        return {name: values[-1] for name, values in urllib.parse.parse_qs(query, max_num_fields=20).items()}
    except ValueError:
        return {}


def _understood(query: str) -> tuple[Asked, list[str]]:
    """Parse a query string; return a sentence for each invalid part too."""
    given = parameters(query)
    trouble: list[str] = []
    k = _whole(given, "k", MOST_HITS, trouble)
    compared = _whole(given, "with", 10**9, trouble)
    return Asked(given.get("q", "").strip(), Asked().k if k is None else k, compared), trouble


def _whole(given: Mapping[str, str], name: str, most: int, trouble: list[str]) -> int | None:
    """Return a parameter as a whole number from 1 to `most`; None if not given, or if invalid, with a sentence."""
    text = given.get(name, "")
    if not text:
        return None
    if re.fullmatch(r"\d{1,10}", text, re.ASCII) and 1 <= int(text) <= most:
        return int(text)
    trouble.append(f"{name}={shortened(text, 40)} was left out: it must be a whole number from 1 to {most:,}.")
    return None


def _answered(side: SearchedRelease, answer: Answer | StageError) -> SearchedRelease:
    if isinstance(answer, StageError):
        return side._replace(trouble=f"It can't be searched: {answer}")
    return side._replace(answer=answer)
