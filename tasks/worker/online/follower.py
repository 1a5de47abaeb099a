"""Follows the current release: opens and warms the next one beside the one that serves, then swaps them at once.

While a published target still holds vectors of another model, or is about to, that model answers too, and for a while
after the target has swapped: requests that name it find the model of the rows that they search. A request for a model
that is not open lets the follower look at once: a rollback may swap targets first.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from collections import deque
from collections.abc import Callable

from infra.store.base import Store
from tasks.foundation.errors import ConfigError
from tasks.foundation.passwords import masked
from tasks.runs import releases, served_targets
from tasks.worker.online.opened import Opened, open_release

LOOK_SECONDS = 2.0  # between two looks at releases/CURRENT; each is one small read of the workspace
TARGETS_SECONDS = 30.0  # between two looks at the targets' records, which are a listing and a read each
LINGER_SECONDS = 30.0  # from a target's swap to the end of its old model, for rows that were read before
AGAIN_SECONDS = 0.2  # at least, between two looks that requests ask for
RETRY_SECONDS = 30.0  # after a release that can't be opened: a damaged folder is read whole each time
MOST_OTHERS = 2  # models that are open beside the current one; each takes as much memory


class Follower:
    """The releases that answer. Every answer takes `answering` once, so it is of one release."""

    def __init__(self, store: Store, named: int | None = None) -> None:
        """Open the current release and the models of targets, or the release `named` alone, which is kept for ever.

        Raises:
            ConfigError: there is none. StageError: it can't be opened.
        """
        self._store, self._named = store, named
        release = releases.current(store) if named is None else releases.read(store, named)
        if release is None:
            raise ConfigError(releases.no_current(store, "to serve"))
        self.answering: tuple[Opened, ...] = (open_release(store, release.ref),)  # the one that serves is first
        self.current = release.number  # the pointer's
        self.trouble: str | None = None  # reason why the current release does not serve
        self.swaps, self.failures = 0, 0
        self._looked_at_targets = -TARGETS_SECONDS
        self._needed: dict[str, float] = {}  # the moment when a model was last current or a target's, monotonic
        self._refused: set[int] = set()  # releases of targets that can't be opened
        self._retry_at = 0.0  # monotonic, after a release that can't be opened
        self._ended, self._woken = threading.Event(), threading.Event()
        self._waiting: deque[Callable[[], object]] = deque()  # functions that let a request go on after a look
        self._thread: threading.Thread | None = None

    @property
    def serving(self) -> Opened:
        """The release that answers requests without a name."""
        return self.answering[0]

    def start(self, told: Callable[[str], None]) -> None:
        """Look for another current release until `close`. `told` gets a line for each swap and each failure."""
        if self._named is None:
            self.look_at_targets(told)
            self._thread = threading.Thread(target=self._run, args=(told,), name="follower", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """End the looks; a release that is being opened is not waited for."""
        self._ended.set()
        self._woken.set()

    async def look_now(self) -> None:
        """Return once all that is current by now answers, or can't be opened. A server of one release never looks."""
        if self._thread is None:
            return
        loop = asyncio.get_running_loop()
        looked = loop.create_future()
        self._waiting.append(lambda: loop.call_soon_threadsafe(_resolve, looked))
        self._woken.set()
        await looked

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
        release = releases.read(self._store, pointer.release).ref
        open_already = [each for each in self.answering if each.model_version == release.model_version]
        made = open_release(self._store, release, before=(*open_already, self.serving)[0])
        others = (self.serving, *self.answering[1:])
        self._needed[self.serving.model_version] = time.monotonic()
        kept = [_without_vectors(each) for each in others if each.model_version != made.model_version]
        self.answering = (made, *kept)  # the targets' records decide on the kept ones next
        self.swaps, self.trouble = self.swaps + 1, None
        self._looked_at_targets = -TARGETS_SECONDS
        return True

    def look_at_targets(self, told: Callable[[str], None]) -> None:
        """Open the models of the targets' present vectors, and let go of models that nobody needed lately.

        At most `MOST_OTHERS` stay open, the models of targets first.
        """
        self._looked_at_targets = time.monotonic()
        try:
            served = served_targets.of_all_targets(self._store)
            coming = [releases.read(self._store, each.coming) for each in served if each.coming is not None]
        except Exception as error:  # a record is damaged, or the store is away: all stays as it is
            told(f"the targets' records can't be read: {masked(str(error)) or type(error).__name__}")
            return
        now = self.serving.model_version
        numbers = {each.model_version: each.release for each in served}
        numbers |= {release.model.version: release.number for release in coming}
        numbers.pop(now, None)
        newest = sorted(numbers.items(), key=lambda item: -item[1])[:MOST_OTHERS]
        there = {each.model_version: each for each in self.answering[1:]}
        others: list[Opened] = []
        for version, number in newest:
            if version in there:
                others.append(there[version])
            elif number not in self._refused and (opened := self._opened(number, told)) is not None:
                others.append(opened)
        at = time.monotonic()
        self._needed |= dict.fromkeys({now, *numbers}, at)
        since = {version: at - self._needed.get(version, at) for version in there if version not in numbers}
        lingering = sorted((version for version in since if since[version] < LINGER_SECONDS), key=since.__getitem__)
        others += [there[version] for version in lingering[: MOST_OTHERS - len(others)]]
        self.answering = (self.serving, *others)
        self._needed = {each.model_version: self._needed.get(each.model_version, at) for each in self.answering}

    def _opened(self, number: int, told: Callable[[str], None]) -> Opened | None:
        try:
            opened = open_release(self._store, releases.read(self._store, number).ref, vectors=False)
        except Exception as error:  # it is pruned, or damaged: requests that name its model get 409
            self._refused.add(number)
            told(f"release {number} of a target does not answer: {masked(str(error)) or type(error).__name__}")
            return None
        told(f"release {number} answers too, since a target serves it: {opened.model_version}")
        return opened

    def _run(self, told: Callable[[str], None]) -> None:
        while not self._ended.is_set():
            asked = self._woken.wait(LOOK_SECONDS)
            self._woken.clear()
            waiting = [self._waiting.popleft() for _ in range(len(self._waiting))]
            if time.monotonic() >= self._retry_at:
                self._look_and_tell(told)
            if asked or time.monotonic() - self._looked_at_targets >= TARGETS_SECONDS:
                self.look_at_targets(told)
            for resolve in waiting:
                with contextlib.suppress(RuntimeError):  # its event loop has ended
                    resolve()
            if asked:
                self._ended.wait(AGAIN_SECONDS)

    def _look_and_tell(self, told: Callable[[str], None]) -> None:
        try:
            if self.look():
                now = self.serving
                told(f"release {now.release} serves, opened in {now.seconds:.1f} s: {now.model_version}")
        except Exception as error:  # whatever is wrong with the next release, this one serves on
            self._retry_at, self.failures = time.monotonic() + RETRY_SECONDS, self.failures + 1
            said = f"release {self.serving.release} serves on: {masked(str(error)) or type(error).__name__}"
            if said != self.trouble:
                told(said)
            self.trouble = said


def _resolve(looked: asyncio.Future[None]) -> None:
    if not looked.done():  # its client may have left
        looked.set_result(None)


def _without_vectors(opened: Opened) -> Opened:
    """Return a release without its vectors, which only searches of the current one need."""
    return dataclasses.replace(opened, vectors=None)
