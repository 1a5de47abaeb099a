"""The records of a workspace for readers, and the files of a release compared with their manifests.

A snapshot is one listing, parallel reads, and each record read once. It can not write or lock. A decision takes a new
one; none is kept across a stage.

Records of finished runs are packed by month, so that the history of years needs few reads. A pack is derived. Its
copy of a run counts only while the run's folder lists the same records with the same sizes; otherwise the records
themselves are read. So a lost or outdated pack hides nothing, and the next packing repairs it.
"""

import contextlib
import functools
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, TypeVar

from pydantic import Field, ValidationError

from infra.store.base import Conflict, Store
from infra.store.manifest import (
    MANIFEST,
    CorruptFolder,
    MissingFolder,
    check_sizes,
    expect_manifest,
    find_damage,
    open_files,
    read_manifest,
    set_apart,
)
from infra.store.records import first_problem, parse_record, refuse_newer
from tasks.contracts.kinds import run_folder
from tasks.contracts.runs import Hold, Release, RunPlan
from tasks.contracts.workspace import (
    CURRENT,
    INVOCATION,
    LEDGER,
    NUMBER,
    OLD_VERDICTS,
    PACKED_RUNS,
    PLAN,
    RELEASE,
    RESULT,
    VERDICTS,
)
from tasks.foundation.errors import StoreError
from tasks.foundation.records import Record
from tasks.runs import branches, releases
from tasks.runs.invocations import Invocation, is_held
from tasks.runs.ledger import LedgerRecord
from tasks.runs.releases import Numbered, Pointer

READERS = 16  # parallel reads, for workspaces in a bucket

_RECORDS = (PLAN, INVOCATION, RESULT, VERDICTS, OLD_VERDICTS, NUMBER, LEDGER)


class PackedRun(Record):
    """The records of one run, and related records that never change."""

    sizes: dict[str, int] = Field(description="bytes of each record in the run's folder, by key")
    records: dict[str, str] = Field(
        description="content of the records, its release and the manifests of its spans, by key"
    )


class Pack(Record):
    """`packs/runs/<month>.json`: the finished runs that began in a month."""

    version: Literal[1] = 1
    runs: dict[str, PackedRun] = Field(description="by run key")


def read_all(store: Store, keys: Iterable[str]) -> dict[str, bytes | None]:
    """Return objects by key, read in parallel; None for missing ones."""

    def read(key: str) -> bytes | None:
        try:
            return store.read(key)
        except FileNotFoundError:
            return None

    wanted = list(dict.fromkeys(keys))
    if len(wanted) < 2:
        return {key: read(key) for key in wanted}
    with ThreadPoolExecutor(READERS) as readers:
        return dict(zip(wanted, readers.map(read, wanted), strict=True))


def unpacked(store: Store, listed: Mapping[str, int]) -> dict[str, bytes]:
    """Return the records of runs that have not changed since packing; `listed` are the keys and sizes below `runs/`."""
    there = _sizes(listed)
    found: dict[str, bytes] = {}
    for _, pack in _packs(store).values():
        for run_key, run in pack.runs.items():
            if run.sizes == there.get(run_key):
                found |= {key: text.encode() for key, text in run.records.items()}
    return found


def pack_runs(store: Store) -> int:
    """Pack the runs that are over and in no pack as they are now; return how many.

    Raises:
        StoreError: the workspace could not be read or written.
    """
    packs = _packs(store)
    packed = {run_key: run.sizes for _, pack in packs.values() for run_key, run in pack.runs.items()}
    left = {run_key: sizes for run_key, sizes in _sizes(store.sizes("runs")).items() if packed.get(run_key) != sizes}
    raw = read_all(store, (key for sizes in left.values() for key in sizes))
    made: dict[str, dict[str, PackedRun]] = {}
    for run_key, sizes in left.items():
        records = {key: data.decode() for key in sizes if (data := raw[key]) is not None and len(data) == sizes[key]}
        if records.keys() == sizes.keys() and (month := _month(records)):
            records |= _beside(store, records)
            made.setdefault(month, {})[run_key] = PackedRun(sizes=sizes, records=records)
    for month, runs in made.items():
        before, pack = packs.get(month, (None, Pack(runs={})))
        with contextlib.suppress(Conflict):  # another process packs too; the next packing adds the rest
            store.swap(PACKED_RUNS.key(month=month), Pack(runs=pack.runs | runs).to_json(), expected=before)
    return sum(map(len, made.values()))


def _packs(store: Store) -> dict[str, tuple[bytes | None, Pack]]:
    """Return each pack by month, with its bytes; one that can't be read is made again."""
    found = {}
    for key, data in read_all(store, store.list(PACKED_RUNS.within())).items():
        try:
            pack = Pack.model_validate_json(data or b"")
        except ValidationError:
            pack = Pack(runs={})
        found[PACKED_RUNS.fields(key)["month"]] = data, pack
    return found


def _sizes(listed: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return the bytes of each record, by run key and key."""
    found: dict[str, dict[str, int]] = {}
    for key, size in listed.items():
        if fields := next(filter(None, (kind.match(key) for kind in _RECORDS)), None):
            found.setdefault(fields["run"], {})[key] = size
    return found


def _month(records: Mapping[str, str]) -> str | None:
    """Return the month in which a run began, as `2024-02`; None while it goes on, or if a record can't be read."""
    begins = []
    try:
        for key, text in records.items():
            if INVOCATION.match(key):
                one = Invocation.model_validate_json(text)
                begins.append((one.began_at, one.ended_at))
            elif LEDGER.match(key):
                attempt = LedgerRecord.model_validate_json(text)
                begins.append((attempt.started_at, attempt.ended_at))
    except ValidationError:
        return None
    over = begins and all(ended is not None for _, ended in begins)
    return min(began for began, _ in begins)[:7] if over else None


def _beside(store: Store, records: Mapping[str, str]) -> dict[str, str]:
    """Return the record of a run's release and the manifests of its spans, by key; neither ever changes."""
    keys = []
    for key, text in records.items():
        with contextlib.suppress(ValidationError):
            if NUMBER.match(key):
                keys.append(RELEASE.key(number=Numbered.model_validate_json(text).number))
            elif PLAN.match(key):
                keys += [f"{span.prefix}/{MANIFEST}" for span in RunPlan.model_validate_json(text).window]
    return {key: data.decode() for key, data in read_all(store, keys).items() if data is not None}


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
                refuse_newer(f"{self.store.uri}/{key}", invalid)
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
