"""The pages of `millrace serve` by path; server.py sends them.

It only reads. `/` searches the releases; `/map` draws one, by a worker whose map is kept for the next requests. The
history is made at most every few seconds; a run's report is made if none was written.
"""

import re
import threading
import time
import urllib.parse
from collections.abc import Callable
from itertools import islice
from typing import NamedTuple

from flows.cli.serving.search_page import SearchPages, parameters
from flows.cli.serving.search_worker import answered_once
from flows.presentation.model import HISTORY_KEY
from flows.presentation.release_map import Shown, map_html, nothing_html
from flows.presentation.search import (
    CHANGES,
    HISTORY,
    LINEAGES,
    MAP,
    RELEASES,
    SEARCH,
    TO_CHANGES,
    TO_HISTORY,
    TO_LINEAGES,
    TO_RELEASES,
    TO_SEARCH,
)
from infra.store.base import Store
from tasks.contracts.runs import Release
from tasks.contracts.search import ReleaseMap
from tasks.contracts.workspace import DATA_PAGE, LINEAGES_PAGE, PLAN, REPORT
from tasks.runs import releases
from tasks.runs.plan import read_plan

MOST_MAPS = 8  # maps, of about 1 MB each
MOST_OFFERED = 12  # releases to compare with, each a read of the store; an address may name any other
_NUMBER = re.compile(r"[1-9]\d{0,8}", re.ASCII)

_Key = tuple[int, int, int | None]  # numbers of the release, of the current one, and of the one compared with


class MapPages:
    """The maps of one workspace; several threads may ask at once, and one map is made at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._making = threading.Lock()
        self._made: dict[_Key, ReleaseMap] = {}  # releases never change

    def page(self, number: int | None, query: str) -> bytes | None:
        """Return the map of a release, by default of the current one; None if it does not exist.

        Args:
            query: such as `colour=category&with=3`; an unknown colour or release counts as not given.

        Raises:
            StageError: the worker failed, or a record is not readable; names the file.
        """
        current = releases.current(self._store)
        if current is None:
            return nothing_html(self._store.uri, "There is no release yet. To make one: millrace run")
        if number is not None and not releases.is_made(self._store, number):
            return None
        release = current if number is None else releases.read(self._store, number)
        if releases.is_pruned(self._store, release.number):
            return nothing_html(self._store.uri, f"millrace prune has deleted the vectors of release {release.number}.")
        given = parameters(query)
        before = self._before(release, given.get("with", ""))
        found = self._map(release, current, before)
        shown = Shown(release, before, given.get("colour", ""), self._others(release, before), current.number)
        return map_html(self._store.uri, found, shown)

    def _before(self, release: Release, asked: str) -> Release | None:
        """Return the release to compare with: the one asked for, else the one of another model before."""
        if _NUMBER.fullmatch(asked) and int(asked) != release.number and self._whole(int(asked)):
            return releases.read(self._store, int(asked))
        return releases.of_another_model_before(self._store, release)

    def _others(self, release: Release, before: Release | None) -> tuple[int, ...]:
        """Return the newest whole releases with new models, and the one compared with, the newest first."""
        newest = [each.number for each in islice(releases.with_new_models(self._store), MOST_OFFERED)]
        whole = {number for number in newest if number != release.number and self._whole(number)}
        return tuple(sorted(whole | ({before.number} if before is not None else set()), reverse=True))

    def _whole(self, number: int) -> bool:
        return releases.is_made(self._store, number) and not releases.is_pruned(self._store, number)

    def _map(self, release: Release, current: Release, before: Release | None) -> ReleaseMap:
        key = release.number, current.number, before.number if before is not None else None
        with self._making:
            if key not in self._made:
                config = read_plan(self._store, release.run_key).config
                line = answered_once("map", self._store, release, current, before, config)
                self._made = self._made if len(self._made) < MOST_MAPS else {}
                self._made[key] = ReleaseMap.model_validate_json(line)
            return self._made[key]


FRESH_SECONDS = 10.0  # age at which a page is made again; limits the cost of reloads
MOST_KEPT = 50  # pages

HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REPORT = re.compile(rf"/runs/({_NAME})/report\.html")
_DATA = re.compile(rf"/runs/({_NAME})/data\.html")
_ROWS = re.compile(rf"/runs/({_NAME})/rows\.html")
_CHANGES = re.compile(rf"{CHANGES}(?:/([1-9]\d{{0,8}}))?")
_MAP = re.compile(rf"{MAP}(?:/([1-9]\d{{0,8}}))?")
_TEXT_FILE = re.compile(rf"/((?:runs|refreshes|publications)/{_NAME}(?:/{_NAME})*\.(?:json|yaml|txt|log|csv|md))")


class Page(NamedTuple):
    """The content of a response."""

    content_type: str
    body: bytes


class Pages:
    """The pages of one workspace by path; several threads may ask at once. `close` ends the search workers."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._making = threading.Lock()  # matplotlib draws one picture at a time
        self._made: dict[str, tuple[float, Page]] = {}
        self._search = SearchPages(store)
        self._maps = MapPages(store)

    def close(self) -> None:
        self._search.close()

    def page(self, path: str, query: str = "") -> Page | None:
        """Return the page of a path and a query, both percent-encoded as a browser sends them; None if none exists.

        Raises:
            StageError: the workspace could not be read.
        """
        path = urllib.parse.unquote(path)
        if path == SEARCH:
            return Page(HTML, self._search.search(query))
        if found := _CHANGES.fullmatch(path):
            changes = self._search.changes(int(found[1]) if found[1] else None)
            return Page(HTML, changes) if changes is not None else None
        if path == RELEASES:
            return self._fresh(path, lambda: Page(HTML, self._search.releases()))
        if found := _MAP.fullmatch(path):
            drawn = self._maps.page(int(found[1]) if found[1] else None, query)
            return Page(HTML, drawn) if drawn is not None else None
        if path in (HISTORY, f"/{HISTORY_KEY}"):
            return self._fresh(HISTORY, self._history)
        if path in (LINEAGES, f"/{LINEAGES_PAGE.key()}"):
            return self._fresh(LINEAGES, self._lineages)
        if path == "/metrics":
            return self._fresh(path, self._metrics)
        if found := _REPORT.fullmatch(path):
            return self._report(found[1])
        if found := _DATA.fullmatch(path):
            return self._data(found[1])
        if found := _ROWS.fullmatch(path):
            return self._rows(found[1])
        if found := _TEXT_FILE.fullmatch(path):
            data = self._read(found[1])
            return Page(TEXT, data) if data is not None else None
        return None

    def _history(self) -> Page:
        from flows.presentation.history.page import history_html

        return Page(HTML, history_html(self._store, near=(TO_SEARCH, TO_CHANGES, TO_RELEASES, TO_LINEAGES)))

    def _lineages(self) -> Page:
        from flows.presentation.history.lineages import lineages_html

        return Page(HTML, lineages_html(self._store, near=(TO_SEARCH, TO_CHANGES, TO_RELEASES, TO_HISTORY)))

    def _metrics(self) -> Page:
        from tasks.monitoring.prometheus import CONTENT_TYPE, metrics_text

        return Page(CONTENT_TYPE, metrics_text(self._store))

    def _report(self, run_key: str) -> Page | None:
        """Return the report that was written when the run ended; if there is none, or the run lasts, make one now."""
        from flows.presentation.run.report import run_html
        from tasks.runs.run import Run
        from tasks.runs.snapshot import Snapshot

        if not self._store.exists(PLAN.key(run=run_key)):
            return None
        started = Run(Snapshot(self._store, strict=True), run_key).invocations
        over = bool(started) and started[-1].ended_at is not None
        if over and (stored := self._read(REPORT.key(run=run_key))) is not None:
            return Page(HTML, stored)
        return self._fresh(run_key, lambda: Page(HTML, run_html(self._store, run_key)))

    def _data(self, run_key: str) -> Page | None:
        """Return the page written at the end of the run; make it now if the run has none."""
        from flows.presentation.run.data_page import data_html

        if not self._store.exists(PLAN.key(run=run_key)):
            return None
        if (stored := self._read(DATA_PAGE.key(run=run_key))) is not None:
            return Page(HTML, stored)
        made = self._fresh(f"{run_key} data", lambda: Page(HTML, data_html(self._store, run_key) or b""))
        return made if made.body else None

    def _rows(self, run_key: str) -> Page | None:
        """Return the rows that were set apart. It is not kept, so that it never shows deleted rows."""
        from flows.presentation.run.data_page import rows_html

        if not self._store.exists(PLAN.key(run=run_key)):
            return None
        made = rows_html(self._store, run_key)
        return Page(HTML, made) if made is not None else None

    def _read(self, key: str) -> bytes | None:
        return self._store.read(key) if self._store.exists(key) else None

    def _fresh(self, name: str, make: Callable[[], Page]) -> Page:
        with self._making:
            at, page = self._made.get(name, (0.0, None))
            if page is None or self._clock() - at > FRESH_SECONDS:
                page = make()
                self._made = self._made if len(self._made) < MOST_KEPT else {}
                self._made[name] = (self._clock(), page)
            return page
