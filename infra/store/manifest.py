"""Manifest last: a folder of the workspace exists for readers only once its MANIFEST.json does.

Every artifact (span, validated rows, checkpoint, vectors, model) is written with `commit` and read with
`open_folder`; nothing else decides that a folder is complete. A manifest may also name files of other folders, which
are not written again: always by the place where they truly lie, so nobody follows a chain.

Before files of an earlier folder are named on, each is compared with its manifest, and damaged ones go apart. All are
compared by size, which is one listing. Their bytes are compared in turns: a refresh costs what it changes, so it can't
read a whole release each hour, but a small workspace is read whole.
"""

import contextlib
import functools
import hashlib
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from infra.store.base import Conflict, Store, sha256_of
from infra.store.kept_copies import forget
from infra.store.records import find_record, place, settle
from tasks.foundation.errors import StoreError
from tasks.foundation.records import Record

MANIFEST = "MANIFEST.json"
PRUNED = "PRUNED.json"  # the manifest of a checkpoint that lost its files
T = TypeVar("T")
_WAY_OUT = "restore it from a backup"  # unless the caller knows better


class MissingFolder(StoreError):
    """The key has no complete folder."""


class CorruptFolder(StoreError):
    """A folder's files don't match its manifest."""


class FileEntry(Record):
    name: str
    bytes: int = Field(ge=0)
    sha256: str
    at: str | None = Field(
        default=None,
        exclude_if=lambda at: at is None,  # else the checksums of manifests without such files would change
        description="key of the file, such as catalogue/1f2e/part-00003.parquet; null: it lies in the folder",
    )

    def key(self, prefix: str) -> str:
        """Return the key of the file, for a manifest of the folder `prefix`."""
        return self.at or f"{prefix}/{self.name}"

    def named_from(self, prefix: str) -> "FileEntry":
        """Return the entry for a manifest of another folder than `prefix`."""
        return self.model_copy(update={"at": self.key(prefix)})


class Manifest(Record):
    """The files of a folder. `facts` are the writer's metadata (rows, width, step, ...)."""

    version: Literal[1, 2] = Field(
        default=1, description="2: a reader that takes each file for itself is wrong; one that knows only 1 must stop"
    )
    kind: str
    files: tuple[FileEntry, ...]
    facts: dict[str, Any]

    @property
    def sha256(self) -> str:
        """The hex SHA-256 of the manifest, which covers every byte in the folder."""
        return hashlib.sha256(self.to_json()).hexdigest()


def commit(store: Store, prefix: str, source: Path, kind: str, facts: dict[str, Any]) -> Manifest:
    """Upload every file below the local folder `source` to `prefix`, then the manifest.

    Raises:
        Conflict: `prefix` has a complete folder with other content.
    """
    files = entries_of(source)
    manifest = Manifest(kind=kind, files=files, facts=facts)
    if not _sealed_alike(store, prefix, manifest):
        for entry in files:
            place(store, source / entry.name, f"{prefix}/{entry.name}")
        # A manifest that appeared meanwhile is a late writer's, whose files were replaced.
        settle(store, f"{prefix}/{MANIFEST}", manifest.to_json())
    return manifest


def entries_of(source: Path) -> tuple[FileEntry, ...]:
    """Return the entries of all files below a local folder, sorted by path."""
    paths = sorted(path for path in source.rglob("*") if path.is_file())
    return tuple(
        FileEntry(name=p.relative_to(source).as_posix(), bytes=p.stat().st_size, sha256=sha256_of(p)) for p in paths
    )


def commit_by_content(store: Store, prefix: str, source: Path, kind: str, facts: dict[str, Any]) -> str:
    """Commit a folder under `prefix`, a hyphen and a hash of its files, and return that name.

    So the name does not depend on the attempt. A damaged folder of that name moves to quarantine.
    """
    digest = hashlib.sha256()
    for path in sorted(path for path in source.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(source).as_posix()} {sha256_of(path)}\n".encode())
    folder = f"{prefix}-{digest.hexdigest()[:12]}"
    try:
        open_folder(store, folder, kind)
    except CorruptFolder:
        quarantine(store, folder)
    except MissingFolder:
        pass
    commit(store, folder, source, kind, facts)
    return folder


def seal(
    store: Store,
    prefix: str,
    files: tuple[FileEntry, ...],
    kind: str,
    facts: dict[str, Any],
    version: Literal[1, 2] = 1,
) -> Manifest:
    """Write the manifest of a folder whose files were uploaded one by one, by several workers or attempts.

    Raises:
        Conflict: `prefix` has a complete folder with other content.
    """
    manifest = Manifest(version=version, kind=kind, files=files, facts=facts)
    if not _sealed_alike(store, prefix, manifest):
        try:
            store.create(f"{prefix}/{MANIFEST}", manifest.to_json())
        except Conflict:
            _sealed_alike(store, prefix, manifest)
    return manifest


def mark_of(prefix: str) -> str:
    """Return the key of the mark that a prune puts on a folder before it deletes files of it.

    The name of a marked folder is never used again: a deletion may still be under way there, sent by a prune that
    stood still and lost its locks, and files that others name stay there. It lies outside of the folder, which is
    listed in every refresh.
    """
    return f"pruned/{prefix}.json"


def read_manifest(store: Store, prefix: str) -> Manifest:
    """Return the manifest of a complete folder.

    Raises:
        MissingFolder: the folder has no manifest.
        CorruptFolder: the manifest is not readable.
    """
    manifest = find_record(store, f"{prefix}/{MANIFEST}", Manifest, _WAY_OUT, CorruptFolder)
    if manifest is None:
        raise MissingFolder(
            f"{store.uri}/{prefix} has no {MANIFEST}: it was never completed, was pruned, or is lost: {_WAY_OUT}"
        )
    return manifest


def read_fact(store: Store, prefix: str, name: str, of: type[T]) -> T:
    """Return one of the facts in the manifest of a complete folder.

    Raises:
        MissingFolder, CorruptFolder: as `read_manifest`; or the fact is missing, or not an `of`.
    """
    try:
        return _adapter(of).validate_python(read_manifest(store, prefix).facts.get(name), strict=True)
    except ValidationError as invalid:
        problem = f"facts.{name}: {invalid.errors()[0]['msg']}"
        raise CorruptFolder(f"{store.uri}/{prefix}/{MANIFEST}: {problem}; {_WAY_OUT}") from invalid


@functools.cache
def _adapter(of: type[T]) -> TypeAdapter[T]:
    return TypeAdapter(of)


def open_folder(store: Store, prefix: str, kind: str, sha256: str | None = None) -> tuple[Path, Manifest]:
    """Return a local path to a complete folder, and its manifest, after verifying the checksum of every file.

    Args:
        sha256: checksum of the manifest, from another record; None: the record has none.

    Raises:
        MissingFolder, CorruptFolder: the message names the file.
    """
    manifest = open_manifest(store, prefix, kind)
    expect_manifest(store, prefix, manifest, sha256)
    folder = store.local(prefix)
    for entry in manifest.files:
        _check(folder / entry.name if entry.at is None else store.local(entry.at), entry)
    return folder, manifest


def open_files(store: Store, prefix: str, kind: str, some: Collection[FileEntry] | None = None) -> list[Path]:
    """Return the local paths of a folder's files, in other folders too: of these, only the files that it names.

    Args:
        some: the files that are needed; None: all, in the order of the manifest.

    Raises:
        MissingFolder, CorruptFolder: as of `open_folder`, for these files.
    """
    return _open(store, prefix, open_manifest(store, prefix, kind).files if some is None else some)


def _open(store: Store, prefix: str, files: Collection[FileEntry]) -> list[Path]:
    places = [
        (prefix, entry.name) if entry.at is None else (_folder_of(entry.at), _name_of(entry.at)) for entry in files
    ]
    needed: dict[str, dict[str, str]] = {}
    for (folder, name), entry in zip(places, files, strict=True):
        needed.setdefault(folder, {})[name] = entry.sha256
    folders = {folder: store.local(folder, names) for folder, names in needed.items()}
    paths = [folders[folder] / name for folder, name in places]
    for path, entry in zip(paths, files, strict=True):
        try:
            _check(path, entry)
        except CorruptFolder:
            if not forget(entry.sha256):
                raise
            path.unlink(missing_ok=True)  # it was a copy that an earlier process had kept: fetch the file itself
            _check(store.local(entry.key(prefix)), entry)
    return paths


def open_file(store: Store, prefix: str, manifest: Manifest, name: str) -> Path:
    """Return the local path of one file of a folder. Raises CorruptFolder: it is gone or damaged."""
    return open_entry(store, prefix, find_entry(store, prefix, manifest, name))


def find_entry(store: Store, prefix: str, manifest: Manifest, name: str) -> FileEntry:
    """Return the entry of one file of a folder. Raises CorruptFolder: the manifest has none."""
    entry = next((entry for entry in manifest.files if entry.name == name), None)
    if entry is None:
        raise CorruptFolder(f"{store.uri}/{prefix}/{MANIFEST} names no {name}; restore it from a backup")
    return entry


def open_entry(store: Store, prefix: str, entry: FileEntry) -> Path:
    """Return the local path of a file that a folder's manifest names. Raises CorruptFolder: it is gone or damaged."""
    return _open(store, prefix, (entry,))[0]


def _folder_of(key: str) -> str:
    return key.rpartition("/")[0]


def _name_of(key: str) -> str:
    return key.rpartition("/")[2]


def open_manifest(store: Store, prefix: str, kind: str) -> Manifest:
    """Return the manifest of a complete folder. Raises MissingFolder, CorruptFolder: as `open_folder`."""
    manifest = read_manifest(store, prefix)
    if manifest.kind != kind:
        raise CorruptFolder(f"{store.uri}/{prefix} holds a {manifest.kind}, expected a {kind}")
    return manifest


def expect_manifest(store: Store, prefix: str, manifest: Manifest, sha256: str | None) -> None:
    """Compare a folder's manifest with the hash in another record. None: the record has no hash.

    Raises:
        CorruptFolder: the hashes differ.
    """
    if sha256 is not None and manifest.sha256 != sha256:
        raise CorruptFolder(
            f"{store.uri}/{prefix}/{MANIFEST} is not the one that was released: somebody changed the folder after "
            "that. Restore it from a backup, or go to another release: millrace rollback --to N"
        )


def _check(path: Path, entry: FileEntry) -> None:
    """Compare a file with its manifest entry. Raises CorruptFolder."""
    if not path.is_file():
        raise CorruptFolder(f"{path} is gone, though {MANIFEST} names it; {_WAY_OUT}")
    if path.stat().st_size != entry.bytes or sha256_of(path) != entry.sha256:
        raise CorruptFolder(f"{path} does not match its checksum in {MANIFEST}; {_WAY_OUT}")


def check_sizes(store: Store, prefix: str) -> Manifest:
    """Return the manifest of a complete folder after comparing the size of every file; reads no file.

    Raises:
        MissingFolder, CorruptFolder: the message names the file.
    """
    manifest = read_manifest(store, prefix)
    sizes = sizes_of(store, prefix, manifest)
    for entry in manifest.files:
        key = entry.key(prefix)
        found = sizes.get(key)
        if found is None:
            raise CorruptFolder(f"{store.uri}/{key} is gone, though {MANIFEST} names it")
        if found != entry.bytes:
            raise CorruptFolder(f"{store.uri}/{key} has {found} bytes, but {MANIFEST} says {entry.bytes}")
    return manifest


def sizes_of(store: Store, prefix: str, manifest: Manifest) -> dict[str, int]:
    """Return the bytes of the objects in the folder, and of its neighbours if it names files of theirs.

    A folder after a year of refreshes names files of hundreds of others: one listing of all is fewer requests.
    """
    others = {_folder_of(_folder_of(entry.at)) for entry in manifest.files if entry.at is not None}
    sizes: dict[str, int] = {}
    for folder in others or {prefix}:
        sizes |= store.sizes(folder)
    return sizes if _folder_of(prefix) in others or not others else sizes | store.sizes(prefix)


def quarantine(store: Store, prefix: str) -> str:
    """Move a corrupt folder or file to quarantine/, which no reader opens; return its new key."""
    number = 1
    while store.list(target := f"quarantine/{prefix}.{number}") or store.exists(target):
        number += 1
    store.move(prefix, target)
    return target


def _sealed_alike(store: Store, prefix: str, manifest: Manifest) -> bool:
    """Return True if the folder is already complete with exactly this content; raise Conflict for other content.

    Equal files count as one, wherever they lie: another process may have named other places.
    """
    key = f"{prefix}/{MANIFEST}"
    if not store.exists(key):
        return False
    raw = store.read(key)
    if raw != manifest.to_json() and _placeless(read_manifest(store, prefix)) != _placeless(manifest):
        raise Conflict(f"{store.uri}/{prefix} is complete and holds something else; nothing was written")
    return True


def _placeless(manifest: Manifest) -> Manifest:
    files = tuple(entry.model_copy(update={"at": None}) for entry in manifest.files)
    return manifest.model_copy(update={"files": files})


READ_BYTES = 64 * 2**20  # in one turn, unless that takes more than MOST_TURNS; SHA-256 takes 0.06 s of a core for it
MOST_TURNS = 32  # turns in which each file is read once: a day and a third of hourly refreshes


def turns_of(total: int) -> int:
    """Return the number of turns, a power of two, in which files with `total` bytes are each read once."""
    turns = 1
    while turns < MOST_TURNS and turns * READ_BYTES < total:
        turns *= 2
    return turns


def in_turn(files: Sequence[FileEntry], turn: int) -> list[FileEntry]:
    """Return the files whose bytes are compared in this turn; of 32 turns in a row, each file is in at least one.

    The number of turns is a power of two and a file's place follows from its name, so this holds while the folder
    grows.
    """
    turns = turns_of(sum(entry.bytes for entry in files))
    return [entry for entry in files if zlib.crc32(entry.name.encode()) % turns == turn % turns]


def find_damage(store: Store, prefix: str, manifest: Manifest, read: Collection[FileEntry] = ()) -> dict[str, str]:
    """Return the names of damaged files with a sentence about each: one is gone, or has another size or other bytes.

    Args:
        read: the files of the manifest whose bytes are compared too.
    """
    sizes, found = sizes_of(store, prefix, manifest), dict[str, str]()
    for entry in manifest.files:
        size = sizes.get(key := entry.key(prefix))
        if size is None:
            found[entry.name] = f"{store.uri}/{key} is gone"
        elif size != entry.bytes:
            found[entry.name] = f"{store.uri}/{key} has {size} bytes instead of {entry.bytes}"
    folders: dict[str, list[FileEntry]] = {}
    for entry in read:
        if entry.name not in found:
            folders.setdefault(_folder_of(entry.key(prefix)), []).append(entry)
    for folder, entries in folders.items():
        here = store.local(folder, {_name_of(entry.key(prefix)) for entry in entries})
        for entry in entries:
            if not _as_written(store, entry.key(prefix), entry, here / _name_of(entry.key(prefix))):
                found[entry.name] = f"{store.uri}/{entry.key(prefix)} does not match its checksum"
    return found


def set_apart(store: Store, prefix: str, manifest: Manifest, names: Collection[str]) -> None:
    """Move damaged files to quarantine/, so that every other folder that names one is known to lack it, too."""
    for entry in manifest.files:
        key = entry.key(prefix)
        if entry.name in names and store.exists(key):
            with contextlib.suppress(FileNotFoundError):  # another worker was faster
                quarantine(store, key)


def expect_sound(store: Store, prefix: str, manifest: Manifest, turn: int | None = None) -> None:
    """Set the damaged files of a folder apart.

    Args:
        turn: says whose bytes are compared; None: the bytes of all files.

    Raises:
        CorruptFolder: there are any; names one.
    """
    read = manifest.files if turn is None else in_turn(manifest.files, turn)
    if damage := find_damage(store, prefix, manifest, read):
        set_apart(store, prefix, manifest, damage)
        raise CorruptFolder(sentence_of(damage))


def sentence_of(damage: dict[str, str]) -> str:
    """Return a sentence about damaged files."""
    first, *others = damage.values()
    return f"{first}, and {len(others)} more files are damaged" if others else first


def next_folder(store: Store, prefix: str, mark: str) -> str:
    """Return the first of `prefix`, `prefix` with `mark` and 2, 3, ... that no prune marked and that lost no file.

    So what replaces a damaged folder lies beside it: others still read the sound files there.
    """
    number, name = 1, prefix
    while store.exists(mark_of(name)) or _lost(store, name):
        number += 1
        name = f"{prefix}{mark}{number}"
    return name


@contextlib.contextmanager
def naming_release(number: int) -> Iterator[None]:
    """Add the release and the way out to an error about a missing or damaged file of its model or vectors."""
    try:
        yield
    except (MissingFolder, CorruptFolder) as error:
        raise type(error)(
            f"release {number} is damaged: {error}. If it is the current one, what is damaged is made again by: "
            "millrace refresh --verify; else use another one, see: millrace releases"
        ) from error


def _lost(store: Store, prefix: str) -> bool:
    try:
        return bool(find_damage(store, prefix, read_manifest(store, prefix)))
    except MissingFolder:
        return False
    except CorruptFolder:
        return True


def _as_written(store: Store, key: str, entry: FileEntry, here: Path) -> bool:
    if here.is_file() and sha256_of(here) == entry.sha256:
        return True
    try:  # this machine's copy of it may be damaged, which is no damage to the workspace
        return hashlib.sha256(store.read(key)).hexdigest() == entry.sha256
    except FileNotFoundError:
        return False
