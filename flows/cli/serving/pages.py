"""The pages of `millrace serve` by path; server.py sends them.

It only reads. `/` searches the releases. The history is made at most every few seconds; a run's report is made if none
was written. Pages of the laboratory, which a team may have deleted, are found by their address.
"""

import importlib
import re
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import NamedTuple

from flows.cli.serving.search_page import SearchPages
from flows.presentation.model import HISTORY_KEY
from flows.presentation.search import (
    CHANGES,
    FURTHER,
    HISTORY,
    RELEASES,
    SEARCH,
    TO_CHANGES,
    TO_LINEAGES,
    TO_RELEASES,
    TO_SEARCH,
)
from infra.store.base import Store
from tasks.contracts.workspace import DATA_PAGE, PLAN, REPORT

FRESH_SECONDS = 10.0  # age at which a page is made again; limits the cost of reloads
MOST_KEPT = 50  # pages

HTML = "text/html; charset=utf-8"
TEXT = "text/plain; charset=utf-8"
_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REPORT = re.compile(rf"/runs/({_NAME})/report\.html")
_DATA = re.compile(rf"/runs/({_NAME})/data\.html")
_ROWS = re.compile(rf"/runs/({_NAME})/rows\.html")
_CHANGES = re.compile(rf"{CHANGES}(?:/([1-9]\d{{0,8}}))?")
_TEXT_FILE = re.compile(rf"/((?:runs|refreshes|publications)/{_NAME}(?:/{_NAME})*\.(?:json|yaml|txt|log|csv|md))")


class Page(NamedTuple):
    """The content of a response."""

    content_type: str
    body: bytes


Fresh = Callable[[str, Callable[[], Page]], Page]  # by name, made again after some seconds
Further = Callable[[str, str], Page | None]  # of the laboratory: by path and query


class Pages:
    """The pages of one workspace by path; several threads may ask at once. `close` ends the search workers."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._making = threading.Lock()  # matplotlib draws one picture at a time
        self._made: dict[str, tuple[float, Page]] = {}
        self._search = SearchPages(store)
        self._loading = threading.Lock()
        self._further: dict[str, Further] = {}  # by module

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
        if path in (HISTORY, f"/{HISTORY_KEY}"):
            return self._fresh(HISTORY, self._history)
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
        return self._of_laboratory(path, query)

    def _of_laboratory(self, path: str, query: str) -> Page | None:
        """Return a page of the laboratory; its module is loaded at the first request."""
        module = next((FURTHER[at] for at in FURTHER if path == at or path.startswith(f"{at}/")), None)
        if module is None:
            return None
        with self._loading:
            if module not in self._further:
                self._further[module] = importlib.import_module(module).served(self._store, self._fresh)
        return self._further[module](path, query)

    def _history(self) -> Page:
        from flows.presentation.history.page import history_html

        return Page(HTML, history_html(self._store, near=(TO_SEARCH, TO_CHANGES, TO_RELEASES, *TO_LINEAGES)))

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
        from flows.presentation.run.rows_page import rows_html

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
