"""The files of an earlier folder before they are named on: each is compared with its manifest; damaged ones go apart.

All are compared by size, which is one listing. Their bytes are compared in turns: a refresh costs what it changes, so
it can't read a whole release each hour, but a small workspace is read whole.
"""

import contextlib
import hashlib
import zlib
from collections.abc import Collection, Iterator, Sequence

from infra.store.base import Store, sha256_of
from infra.store.manifest import CorruptFolder, FileEntry, Manifest, MissingFolder, quarantine, read_manifest, sizes_of

READ_BYTES = 64 * 2**20  # in one turn, unless that takes more than MOST_TURNS; SHA-256 takes 0.06 s of a core for it
MOST_TURNS = 32  # turns in which each file is read once: a day and a third of hourly refreshes


def in_turn(files: Sequence[FileEntry], turn: int) -> list[FileEntry]:
    """Return the files whose bytes are compared in this turn; of 32 turns in a row, each file is in at least one.

    The number of turns is a power of two and a file's place follows from its name, so this holds while the folder
    grows.
    """
    turns, total = 1, sum(entry.bytes for entry in files)
    while turns < MOST_TURNS and turns * READ_BYTES < total:
        turns *= 2
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
    for entry in read:
        if entry.name not in found and not _as_written(store, prefix, entry):
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
        turn: says whose bytes are compared; None: those of all files.

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
    """Return the first of `prefix`, `prefix` with `mark` and 2, 3, ... that has not lost a file since it was complete.

    So what replaces a damaged folder lies beside it: others still read the sound files there.
    """
    number, name = 1, prefix
    while _lost(store, name):
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


def _as_written(store: Store, prefix: str, entry: FileEntry) -> bool:
    key = entry.key(prefix)
    here = store.local(key)
    if here.is_file() and sha256_of(here) == entry.sha256:
        return True
    try:  # this machine's copy of it may be damaged, which is no damage to the workspace
        return hashlib.sha256(store.read(key)).hexdigest() == entry.sha256
    except FileNotFoundError:
        return False
