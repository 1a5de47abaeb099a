"""The promises of the workspace, checked after each change of it and at the end of an interleaving.

They follow from the columns of `tasks/contracts/workspace.py`: complete when, written by, kept while. Each reads the
objects themselves, so nothing that the code under test decides takes part.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from tasks.contracts import workspace
from tasks.contracts.kinds import Kind
from tasks.contracts.workspace import CLOSED_NUMBER, CURRENT, FENCE, PRUNED_RELEASE, RELEASE
from tasks.data.span_versions import FEEDS
from tests.simulation.objects import Objects
from tests.simulation.scheduler import Scheduler

MANIFEST = "MANIFEST.json"
_CURRENT = CURRENT.key()
PERSONS = ("rollback", "hold", "lift")  # commands of people; all others are automatic
READERS = ("reader",)
_NEVER_CHANGED = (RELEASE, workspace.SPEC)  # records that are created, and never written again
_NEVER_DELETED = (*_NEVER_CHANGED, workspace.PLAN, workspace.NUMBER, CURRENT, FENCE)


class Begin(NamedTuple):
    """The records of a workspace that later ones are compared with, by key, and the releases that need each file."""

    sealed: Mapping[str, bytes]  # manifests
    created: Mapping[str, bytes]
    needed_by: Mapping[str, frozenset[int]]


@functools.cache
def begin_of(objects: Objects) -> Begin:
    """Return the begin of all interleavings in these objects."""
    contents = {key: found.data for key, found in objects.files.items()}
    needed_by: dict[str, frozenset[int]] = {}
    for key, data in contents.items():
        if found := RELEASE.match(key):
            _note_needs(needed_by, contents.get, found["number"], _parsed(data))
    return Begin(
        {key: data for key, data in contents.items() if key.endswith(f"/{MANIFEST}")},
        {key: data for key, data in contents.items() if _is_of(_NEVER_CHANGED, key)},
        needed_by,
    )


class Invariants:
    """Watches the objects of one interleaving; a broken promise ends it."""

    def __init__(self, objects: Objects, scheduler: Scheduler, begin: Begin) -> None:
        self.objects, self.scheduler = objects, scheduler
        self.pointer = self._json(_CURRENT)
        self.left: set[int] = set()  # releases that served and do no more
        self.left_at: dict[int, int] = {}  # the turn in which each was left last
        self.sealed, self.created, self.needed_by = {**begin.sealed}, {**begin.created}, {**begin.needed_by}
        self.terms: dict[str, tuple[int, str]] = {}  # of each lock, and its holder
        self.taken_by: dict[str, str] = {}  # lock -> the process that holds it, or did last
        self.moved_by = ""  # the process that last moved the pointer to a release, or a hold
        self.lost: set[int] = set()  # releases that lost files, or will
        self.late: set[int] = set()  # releases that were made after a prune marked their number, and have the mark
        objects.watch = self.seen

    def forget_processes(self) -> None:
        """Forget who did what: other processes begin, some under the same names."""
        self.taken_by, self.moved_by = {}, ""

    # After each change

    def seen(self, key: str, data: bytes | None) -> None:
        """Check one change: `data` is the new content, None if the object was deleted."""
        strand = self.scheduler.current
        who = _actor(strand.process.command) if strand is not None else "preparations"
        if who in READERS:
            self._broken(f"{who}, who only reads, wrote {key}")
        if key == _CURRENT:
            self._pointer_moved(who)
        elif key.startswith(".locks/"):
            self._term_rose(key, data)
        elif key.endswith(f"/{MANIFEST}"):
            before = self.sealed.pop(key, None)
            if data is not None:
                if before is not None and _placeless(before) != _placeless(data):
                    self._broken(f"the manifest {key} was overwritten with another one")
                self.sealed[key] = data
        elif _is_of(_NEVER_CHANGED, key):
            if self.created.get(key, data) != data:
                self._broken(f"{key} was {'deleted' if data is None else 'changed'} after it was made")
            if data is not None:
                self.created[key] = data
                if found := RELEASE.match(key):
                    self._was_announced(found["number"])
        if data is None and _is_of(_NEVER_DELETED, key):
            self._broken(f"{key} was deleted, and is kept always")
        if data is None:
            self._files_go(key, who)
        self._whole_after(key, data)

    def _whole_after(self, key: str, data: bytes | None) -> None:
        """Check the releases that a change can make incomplete, or that count from now on."""
        numbers: Iterable[int] = self.needed_by.get(key, ())
        if key == _CURRENT:
            numbers = [self.pointer["release"]] if self.pointer else ()
        elif found := RELEASE.match(key):
            _note_needs(self.needed_by, self._data, found["number"], _parsed(data))
            numbers = [found["number"]]
        elif data is None and (found := PRUNED_RELEASE.match(key) or CLOSED_NUMBER.match(key)):
            numbers = [found["number"]]
            self.late.discard(found["number"])
            self.lost.discard(found["number"])  # its run made its files again
        for number in numbers:
            self._whole(number)
        if key.startswith(("spans/", "items/")):
            self._version_whole(key.rpartition("/")[0])

    def _version_whole(self, folder: str) -> None:
        """A complete version of a span or a feed has all of its files, with the bytes that its manifest names."""
        manifest = _parsed(self._data(f"{folder}/{MANIFEST}"))
        for entry in manifest["files"] if manifest is not None else ():
            data = self._data(f"{folder}/{entry['name']}")
            if data is None or hashlib.sha256(data).hexdigest() != entry["sha256"]:
                self._broken(f"{folder} is complete, and {entry['name']} is {'gone' if data is None else 'another'}")
        known = self._json(FEEDS)
        if known is not None and manifest is not None and folder.startswith("items/"):
            _, span, version = folder.split("/")
            if int(version[1:]) > max(known[of].get(span, 0) for of in ("complete", "announced")):
                self._broken(f"{folder} is complete, and was not announced in {FEEDS}")

    def _pointer_moved(self, who: str) -> None:
        before, self.pointer = self.pointer, self._json(_CURRENT)
        if self.pointer is None:
            return
        now = self.pointer["release"]
        if before is None:
            return
        held, hold = before.get("hold"), self.pointer.get("hold")
        if held and hold != held and (hold or who not in PERSONS):
            self._broken(f"{who} {'replaced' if hold else 'ended'} a hold of a person")
        if hold != held or now != before["release"]:
            self.moved_by = self._process()
        if now == before["release"]:
            self._forgotten(before, who)
            return
        self.left.add(before["release"])
        self.left_at[before["release"]] = self.scheduler.turns
        if who in PERSONS:
            self.left.discard(now)
            return
        if held:
            self._broken(f"{who} made release {now} current during a hold")
        if now in self.left:
            self._broken(f"{who} went back to release {now}, which a person had left")
        made, serving = self._release(now), self._release(before["release"])
        if made is None or serving is None:
            self._broken(f"the pointer went to release {now}, which was not made")
            return
        refreshed = made.get("refreshed")
        alike = made["model"] == serving["model"]  # a refresh that was passed over may be asked for again
        if refreshed is not None and not alike and not self._by_way_of(refreshed, before["release"], made):
            self._broken(f"refresh {now} of release {refreshed} took the place of release {before['release']}")
        if refreshed is None and made["span"]["name"] < serving["span"]["name"]:
            self._broken(f"release {now} of {made['span']['name']} took the place of {serving['span']['name']}")
        self._forgotten(before, who)

    def _by_way_of(self, refreshed: int, serving: int, made: Mapping[str, Any]) -> bool:
        """Several waiting releases may be decided by one write: each follows the one before."""
        while refreshed != serving:
            between = self._release(refreshed)
            if between is None or refreshed <= serving:
                return False
            if between.get("refreshed") is None:
                return True
            refreshed = between["refreshed"]
        return True

    def _forgotten(self, before: Mapping[str, Any], who: str) -> None:
        """A number is crossed out by the write that makes its release current, passes it over, or leaves it.

        The releases that were decided follow one after the other, as each would alone.
        """
        assert self.pointer is not None
        now, passed_over = self.pointer["release"], self.pointer["passed_over"]
        crossed_out = sorted(set(before["undecided"]) - set(self.pointer["undecided"]))
        serving = self._release(before["release"])
        for number in crossed_out:
            if number in self.late:
                self._broken(f"{who} decided release {number}, whose number a prune had marked before it was made")
            made = self._release(number)
            if made is None:
                self._broken(f"{who} crossed out number {number}, whose release is not made yet")
                return
            if who in PERSONS:
                if number != now:
                    self._broken(f"{who} crossed out release {number}, and made {now} current")
                continue
            assert serving is not None
            refreshed = made["refreshed"]
            if (
                number == now
                or refreshed == serving["number"]
                or (refreshed is None and made["span"]["name"] >= serving["span"]["name"])
            ):
                serving = made
            elif refreshed is not None and number not in passed_over:
                self._broken(f"{who} forgot refresh {number}, which never served")
        if crossed_out and who not in PERSONS and serving is not None and serving["number"] != now:
            self._broken(f"{who} crossed out release {serving['number']}, which should be current, not {now}")

    def _was_announced(self, number: int) -> None:
        """A release is undecided from before it is made, so that a dead process leaves none behind."""
        if self.pointer is not None and number not in self.pointer["undecided"]:
            self._broken(f"release {number} was made, and its number is not announced")
        if self._marked(number):
            self.late.add(number)
            self.lost.add(number)

    def _term_rose(self, key: str, data: bytes | None) -> None:
        record = _parsed(data)
        if record is None or "term" not in record:
            if data is None and key.startswith(".locks/lineages"):
                self._broken(f"{key} was deleted: its terms would begin again")
            return
        term, (before, holder) = record["term"], self.terms.get(key, (0, ""))
        if term < before:
            self._broken(f"the term of {key} fell from {before} to {term}")
        if term == before and record.get("owner", "") != holder:
            self._broken(f"the holder of {key} changed, and the term {term} did not")
        if term > before:
            self.taken_by[key] = self._process()
        self.terms[key] = term, record.get("owner", "")

    def _files_go(self, key: str, who: str) -> None:
        """The newest release that has its files keeps them."""
        for number in self.needed_by.get(key, ()):
            if number in self.lost:
                continue
            if who == "prune" and number == next(each for each in reversed(self._numbers()) if each not in self.lost):
                self._broken(f"{who} deleted {key} of release {number}, the newest that had its files")
            self.lost.add(number)

    def _whole(self, number: int) -> None:
        """The current release, and each that is not marked as pruned, has all files of its model and vectors."""
        serves = self.pointer is not None and self.pointer["release"] == number
        record = self._release(number)
        if record is None or (not serves and self._marked(number)):
            return
        for folder in _folders_of(record):
            if (lack := self._lacks(folder)) is not None:
                self._broken(f"release {number}, which {'serves' if serves else 'is kept'}, lacks {lack}")
                return

    def _marked(self, number: int) -> bool:
        """A closed number means that its release came too late, unless that was decided before."""
        undecided = self.pointer is None or number in self.pointer["undecided"]
        marks = [PRUNED_RELEASE, CLOSED_NUMBER] if undecided else [PRUNED_RELEASE]
        return any(kind.key(number=number) in self.objects.files for kind in marks)

    def _lacks(self, folder: str) -> str | None:
        manifest = _parsed(self._data(f"{folder}/{MANIFEST}"))
        if manifest is None:
            return f"{folder}/{MANIFEST}"
        for key, size in _files(folder, manifest):
            found = self.objects.files.get(key)
            if found is None or len(found.data) != size:
                return key
        return None

    # At the end

    def at_end(self) -> None:
        """Check the workspace after all processes have ended."""
        numbers = self._numbers()
        if numbers != list(range(1, len(numbers) + 1)):
            self._broken(f"the numbers of releases have gaps: {numbers}")
        runs = Counter(record["run_key"] for number in numbers if (record := self._release(number)) is not None)
        for run, count in runs.items():
            if count > 1:
                self._broken(f"run {run} has {count} releases")
        pointer = self.pointer
        if pointer is None:
            if numbers:
                self._broken("releases were made, and none is current")
            return
        if self._release(pointer["release"]) is None:
            self._broken(f"the pointer names release {pointer['release']}, which does not exist")
        if PRUNED_RELEASE.key(number=pointer["release"]) in self.objects.files:
            self._broken(f"release {pointer['release']} serves, and is marked as pruned")
        for number in numbers:
            self._whole(number)

    # Objects

    def _process(self) -> str:
        strand = self.scheduler.current
        return strand.process.name if strand is not None else ""

    def _numbers(self) -> list[int]:
        return sorted(found["number"] for key in self.objects.below("releases/") if (found := RELEASE.match(key)))

    def _release(self, number: int) -> dict[str, Any] | None:
        return self._json(RELEASE.key(number=number))

    def _json(self, key: str) -> dict[str, Any] | None:
        return _parsed(self._data(key))

    def _data(self, key: str) -> bytes | None:
        found = self.objects.files.get(key)
        return found.data if found is not None else None

    def _broken(self, sentence: str) -> None:
        self.scheduler.fail(sentence)


def _note_needs(
    needed_by: dict[str, frozenset[int]], read: Callable[[str], bytes | None], number: int, record: Any
) -> None:
    """Add the files of a release's model and vectors."""
    for folder in _folders_of(record) if record is not None else ():
        key = f"{folder}/{MANIFEST}"
        for file, _ in ((key, 0), *_files(folder, _parsed(read(key)) or {"files": ()})):
            needed_by[file] = needed_by.get(file, frozenset()) | {number}


def _folders_of(release: Mapping[str, Any]) -> tuple[str, str]:
    return release["model_prefix"], release["vectors_prefix"]


def _files(folder: str, manifest: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return the keys and bytes of a folder's files; some lie in others."""
    return [(entry.get("at") or f"{folder}/{entry['name']}", entry["bytes"]) for entry in manifest["files"]]


@functools.cache
def _actor(command: str) -> str:
    return command.partition(" ")[0]


@functools.lru_cache(maxsize=100_000)
def _is_of(kinds: tuple[Kind, ...], key: str) -> bool:
    return any(kind.match(key) for kind in kinds)


_cache: dict[bytes, Any] = {}


def _parsed(data: bytes | None) -> Any:
    if data is None:
        return None
    if data not in _cache:
        if len(_cache) > 5000:
            _cache.clear()
        try:
            _cache[data] = json.loads(data)
        except ValueError:
            _cache[data] = None
    return _cache[data]


def _placeless(data: bytes) -> Any:
    parsed = _parsed(data) or {}
    return [(each["name"], each["sha256"]) for each in parsed.get("files", ())], parsed.get("facts")
