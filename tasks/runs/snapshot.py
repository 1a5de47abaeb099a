"""The records of a workspace for readers, and the files of a release compared with their manifests.

A snapshot is one listing, parallel reads, and each record read once. It can not write or lock. A decision takes a new
one; none is kept across a stage.
"""

import contextlib
import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from pydantic import ValidationError

from infra.store.base import Store
from infra.store.manifest import (
    CorruptFolder,
    MissingFolder,
    check_sizes,
    expect_manifest,
    open_files,
    read_manifest,
)
from infra.store.records import first_problem, parse_record
from infra.store.soundness import find_damage, set_apart
from tasks.contracts.kinds import run_folder
from tasks.contracts.runs import Hold, Release
from tasks.contracts.workspace import CURRENT, NUMBER, RELEASE
from tasks.foundation.errors import StoreError
from tasks.foundation.records import Record
from tasks.runs import branches, releases
from tasks.runs.invocations import is_held
from tasks.runs.packs import read_all, unpacked
from tasks.runs.releases import Numbered, Pointer

R = TypeVar("R", bound=Record)

_WAY_OUT = "restore it from a backup, or move it away"


class Snapshot:
    """The records of a workspace, each as of its first read.

    Args:
        strict: raise StoreError for a record that can't be read; default: leave it out, and name it in `problems`.
    """

    def __init__(self, store: Store, strict: bool = False) -> None:
        self.store = store
        self.strict = strict
        self._raw: dict[str, bytes | None] = {}
        self._records: dict[str, Record] = {}
        self._listed: Mapping[str, int] | None = None  # keys and sizes below runs/, once listed
        self._folders: dict[str, list[str]] = {}  # listings of single folders
        self._problems: dict[str, str] = {}
        self._worked_on: dict[str, bool] = {}

    @property
    def problems(self) -> list[str]:
        """One sentence for each record that could not be read so far."""
        return list(self._problems.values())

    @functools.cached_property
    def runs(self) -> Mapping[str, list[str]]:
        """The keys below `runs/`, by run key. The first call reads all packs."""
        listed = self.store.sizes("runs")
        self._raw |= unpacked(self.store, listed)
        self._listed = listed
        found: dict[str, list[str]] = {}
        for key in sorted(listed):
            found.setdefault(key.split("/", 2)[1], []).append(key)
        return found

    def keys(self, run_key: str, folder: str = "") -> Sequence[str]:
        """Return the keys in the folder of a run, or in one folder inside it."""
        whole = run_folder(run_key)
        prefix = f"{whole}/{folder}" if folder else whole
        known = self.runs.get(run_key, []) if self._listed is not None else self._folders.get(whole)
        if known is None:
            if prefix not in self._folders:
                self._folders[prefix] = self.store.list(prefix)
            return self._folders[prefix]
        return [key for key in known if key.startswith(f"{prefix}/")] if folder else known

    @functools.cached_property
    def pointer(self) -> Pointer | None:
        """The pointer to the current release; None before the first. Raises StoreError: it is damaged."""
        self.fetch([CURRENT.key()])
        raw = self._raw[CURRENT.key()]
        way_out = "point it to a release again: millrace rollback --to N"
        return parse_record(f"{self.store.uri}/{CURRENT.key()}", raw, Pointer, way_out) if raw is not None else None

    @functools.cached_property
    def current(self) -> Release | None:
        """The current release; None before the first. Raises StoreError: it or the pointer is not readable or gone."""
        if self.pointer is None:
            return releases.current(self.store)
        return releases.read(self.store, self.pointer.release)

    @property
    def hold(self) -> Hold | None:
        """The hold on all releases. Raises StoreError: the pointer is damaged."""
        return self.pointer.hold if self.pointer is not None else None

    @functools.cached_property
    def held(self) -> frozenset[int]:
        """Numbers of the releases that wait until a hold is lifted; none if the pointer can't be read."""
        return frozenset(self._undecided) if self._undecided and self.hold else frozenset()

    @functools.cached_property
    def late(self) -> frozenset[int]:
        """Numbers that a prune marked before their releases were made: these never served, and their runs go on.

        Empty if the pointer can't be read.
        """
        return frozenset(number for number in self._undecided if releases.is_pruned(self.store, number))

    @property
    def _undecided(self) -> tuple[int, ...]:
        try:
            return self.pointer.undecided if self.pointer is not None else ()
        except StoreError:
            if self.strict:
                raise
            return ()

    @functools.cached_property
    def releases_of_runs(self) -> Mapping[str, Release]:
        """The releases of runs, by run key, without refreshes."""
        with_number = [key for key, files in self.runs.items() if NUMBER.key(run=key) in files]
        self.fetch_releases(with_number)
        found = ((key, self.release_of(key)) for key in with_number)
        return {key: release for key, release in found if release is not None}

    def fetch_releases(self, run_keys: Iterable[str]) -> None:
        """Read the releases of these runs, many at once."""
        numbered = [NUMBER.key(run=key) for key in run_keys]
        self.fetch(numbered)
        self.fetch(RELEASE.key(number=one.number) for key in numbered if (one := self.read(key, Numbered)) is not None)

    def release_of(self, run_key: str) -> Release | None:
        """Return the release of a run; None if it has none."""
        numbered = self.read(NUMBER.key(run=run_key), Numbered)
        release = self.read(RELEASE.key(number=numbered.number), Release) if numbered is not None else None
        return release if release is not None and release.run_key == run_key else None

    @functools.cached_property
    def releases(self) -> list[Release]:
        """All releases, by number."""
        keys = [key for key in self.store.list("releases") if RELEASE.match(key)]
        return sorted(self.read_all(keys, Release), key=lambda release: release.number)

    def is_worked_on(self, lineage: str) -> bool:
        """Return True if a process holds a lineage, or the one that it is a branch of. Raises StoreError."""
        if lineage not in self._worked_on:
            names = {lineage, branches.root(self.store, lineage)}
            self._worked_on[lineage] = any(is_held(self.store, name) for name in names)
        return self._worked_on[lineage]

    def fetch(self, keys: Iterable[str]) -> None:
        """Read objects, many at once, so that `read` need not go to the store for each of them."""
        wanted = (key for key in keys if key not in self._raw)
        there = self._listed
        if there is not None:
            wanted = (key for key in wanted if key in there or not key.startswith("runs/"))
        self._raw |= read_all(self.store, wanted)

    def read(self, key: str, kind: type[R]) -> R | None:
        """Return the record under a key; None without one.

        None also for one that can't be read. Raises StoreError for that instead if the snapshot is strict; names it.
        """
        if isinstance(known := self._records.get(key), kind):
            return known
        if key not in self._raw:
            self.fetch([key])
        raw = self._raw.get(key)
        if raw is None:
            return None
        try:
            record = kind.model_validate_json(raw)
        except ValidationError as invalid:
            problem = f"{self.store.uri}/{key} is not readable: {first_problem(invalid)}"
            if self.strict:
                raise StoreError(f"{problem}; {_WAY_OUT}") from invalid
            self._problems[key] = problem
            return None
        self._records[key] = record
        return record

    def read_all(self, keys: Sequence[str], kind: type[R]) -> list[R]:
        """Return the records under these keys, read in parallel, without missing or unreadable ones."""
        self.fetch(keys)
        return [record for key in keys if (record := self.read(key, kind)) is not None]


def expect_whole(store: Store, release: Release) -> None:
    """Read the model and the vectors of a release, and compare every file with its checksum.

    Raises:
        MissingFolder, CorruptFolder: a file or a manifest is gone or damaged; names it.
    """
    for prefix, sha256 in _served(release):
        manifest = check_sizes(store, prefix)
        expect_manifest(store, prefix, manifest, sha256)
        open_files(store, prefix, manifest.kind)


def find_loss(store: Store, release: Release) -> str | None:
    """Return a sentence about a lost file of a release, its catalogue included; None if none is known. Reads no file.

    Lost is a file that is gone, has another size, or was set apart because its bytes differ.
    """
    for prefix, sha256 in (*_served(release), (release.catalogue.prefix, release.catalogue.sha256)):
        try:
            expect_manifest(store, prefix, check_sizes(store, prefix), sha256)
        except (MissingFolder, CorruptFolder) as error:
            return str(error)
    return None


def set_damaged_apart(store: Store, release: Release) -> list[str]:
    """Read every file of a release, its catalogue included, and move damaged ones to quarantine/.

    Returns:
        A sentence about each damaged file. An unreadable manifest is none: its folder can't be compared.
    """
    found: list[str] = []
    for prefix in (*(prefix for prefix, _ in _served(release)), release.catalogue.prefix):
        with contextlib.suppress(MissingFolder, CorruptFolder):
            manifest = read_manifest(store, prefix)
            damage = find_damage(store, prefix, manifest, manifest.files)
            set_apart(store, prefix, manifest, damage)
            found += damage.values()
    return found


def _served(release: Release) -> tuple[tuple[str, str | None], ...]:
    return (release.model_prefix, release.model_sha256), (release.vectors_prefix, release.vectors_sha256)
