"""Sealed folders and the current release, looked at again and again while a scene goes on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from infra.store.base import Store
from infra.store.manifest import mark_of
from tasks.foundation.errors import StageError
from tests.benchmarks.disturbed.invariants import damaged

MANIFEST, PRUNED = "/MANIFEST.json", "/PRUNED.json"  # the second: of a checkpoint
AGAIN_SECONDS = 2.0


class Watcher:
    """Looks from its making until `stop`, in a thread."""

    def __init__(self, store: Store) -> None:
        self._store, self._over = store, threading.Event()
        self._manifests: dict[str, bytes] = {}  # as they were first seen
        self._thread = threading.Thread(target=self._look_again, name="watcher of sealed folders", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def problems(self) -> Iterator[str]:
        """Yield sealed folders that have changed.

        A folder that is gone as a whole was pruned; so was one that a prune marked, of which the files that others name
        stay, and a checkpoint whose PRUNED.json says what it held.
        """
        self._look()
        there = set(self._store.list(""))
        for key, first in sorted(self._manifests.items()):
            folder = key.removesuffix(MANIFEST)
            if key not in there and f"{folder}{PRUNED}" in there:
                if self._store.read(f"{folder}{PRUNED}") != first:
                    yield f"{folder}{PRUNED} is not the manifest that was sealed"
            elif key not in there and mark_of(folder) not in there:
                if left := [one for one in there if one.startswith(f"{folder}/")]:
                    yield f"{folder} lost its manifest and still has {sorted(left)[0]}"
            elif key in there and self._store.read(key) != first:
                yield f"{key} was changed after it was sealed"
            elif key in there:
                yield from damaged(self._store, folder)

    def _look_again(self) -> None:
        while not self._over.wait(AGAIN_SECONDS):
            with contextlib.suppress(StageError, OSError):  # the scene's own trouble, or a folder that goes away
                self._look()

    def _look(self) -> None:
        for key in self._store.list(""):
            if key.endswith(MANIFEST) and key not in self._manifests:
                self._manifests[key] = self._store.read(key)
