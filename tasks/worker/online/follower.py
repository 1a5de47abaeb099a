"""Follows the current release: opens and warms the next one beside the one that serves, then swaps them at once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from infra.store.base import Store
from tasks.foundation.errors import ConfigError
from tasks.foundation.passwords import masked
from tasks.runs import releases
from tasks.worker.online.opened import Opened, open_release

LOOK_SECONDS = 2.0  # between two looks at releases/CURRENT; each is one small read of the workspace
RETRY_SECONDS = 30.0  # after a release that can't be opened: a damaged folder is read whole each time


class Follower:
    """The release that serves. Every answer takes `serving` once, so it is of one release."""

    def __init__(self, store: Store, named: int | None = None) -> None:
        """Open the current release, or the one `named`, which is kept for ever.

        Raises:
            ConfigError: there is none. StageError: it can't be opened.
        """
        self._store, self._named = store, named
        release = releases.current(store) if named is None else releases.read(store, named)
        if release is None:
            raise ConfigError(releases.no_current(store, "to serve"))
        self.serving: Opened = open_release(store, release.ref)
        self.current = release.number  # the pointer's
        self.trouble: str | None = None  # reason why the current release does not serve
        self.swaps, self.failures = 0, 0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, told: Callable[[str], None]) -> None:
        """Look for another current release until `close`. `told` gets a line for each swap and each failure."""
        if self._named is None:
            self._thread = threading.Thread(target=self._run, args=(told,), name="follower", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the looks; a release that is being opened is not waited for."""
        self._ended.set()

    def look(self) -> bool:
        """Serve the current release if it is another one; return whether it was swapped.

        Raises:
            StageError: the pointer can't be read, or the release can't be opened; the one before serves on.
        """
        _, pointer = releases.read_pointer(self._store)
        if pointer is None or pointer.release == self.serving.release:
            self.trouble = None
            return False
        self.current = pointer.release
        self.serving = open_release(self._store, releases.read(self._store, pointer.release).ref, before=self.serving)
        self.swaps, self.trouble = self.swaps + 1, None
        return True

    def _run(self, told: Callable[[str], None]) -> None:
        wait = LOOK_SECONDS
        while not self._ended.wait(wait):
            wait = LOOK_SECONDS
            try:
                if self.look():
                    now = self.serving
                    told(f"release {now.release} serves, opened in {now.seconds:.1f} s: {now.model_version}")
            except Exception as error:  # whatever is wrong with the next release, this one serves on
                wait, self.failures = RETRY_SECONDS, self.failures + 1
                said = f"release {self.serving.release} serves on: {masked(str(error)) or type(error).__name__}"
                if said != self.trouble:
                    told(said)
                self.trouble = said
