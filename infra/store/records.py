"""Records and other small objects of the workspace: read with one error message, written without harm by late writers.

Every write is conditional: to a free key, or in place of a version read before this process checked that it may still
write (infra/store/lease.py). So the leftovers of a dead attempt are replaced, and a successor's objects never are.
"""

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from infra.store.base import Conflict, Store, sha256_of
from tasks.foundation.errors import ConfigError, StoreError, SupersededError
from tasks.foundation.records import Record

R = TypeVar("R", bound=Record)


class NewerRecord(ConfigError):
    """A newer Millrace wrote the record. It is no damage, so nothing repairs or replaces it."""


def read_record(store: Store, key: str, kind: type[R], way_out: str = "", error: type[StoreError] = StoreError) -> R:
    """Return the record stored under `key`.

    Args:
        way_out: the remedy in the error message, such as "restore it from a backup".
        error: the class to raise.

    Raises:
        StoreError: it is gone or not readable; names the file, the field and the remedy.
        NewerRecord: it has keys, or a version, that this Millrace does not know.
    """
    record = find_record(store, key, kind, way_out, error)
    if record is None:
        raise error(_with_way_out(f"{store.uri}/{key} is gone", way_out))
    return record


def find_record(
    store: Store, key: str, kind: type[R], way_out: str = "", error: type[StoreError] = StoreError
) -> R | None:
    """Return the record stored under `key`; None if it doesn't exist. Arguments and errors as for `read_record`."""
    return find_with_bytes(store, key, kind, way_out, error)[1]


def find_with_bytes(
    store: Store, key: str, kind: type[R], way_out: str = "", error: type[StoreError] = StoreError
) -> tuple[bytes | None, R | None]:
    """Return the bytes of the record under `key`, for `Store.swap`, and the record; else as `find_record`."""
    try:
        raw = store.read(key)
    except FileNotFoundError:
        return None, None
    return raw, parse_record(f"{store.uri}/{key}", raw, kind, way_out, error)


def update_record(
    store: Store,
    key: str,
    kind: type[R],
    change: Callable[[R | None], R | None],
    way_out: str = "",
    error: type[StoreError] = StoreError,
) -> R | None:
    """Replace a record by the change of the present one, so that no other process's change is lost.

    Args:
        change: gets the record, None if there is none, and returns the new one; None: it stays. Called again if
            another process was faster.

    Returns:
        The present record; None if it does not exist.

    Raises:
        StoreError: as `read_record`.
    """
    while True:
        raw, there = find_with_bytes(store, key, kind, way_out, error)
        changed = change(there)
        if changed is None:
            return there
        with contextlib.suppress(Conflict):
            store.swap(key, changed.to_json(), expected=raw)
            return changed


def parse_record(where: str, raw: bytes, kind: type[R], way_out: str = "", error: type[StoreError] = StoreError) -> R:
    """Return the record in `raw`, the bytes of the file `where`. Arguments and errors as for `read_record`."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as invalid:
        refuse_newer(where, invalid)
        words = re.sub(r"\B([A-Z])", r" \1", kind.__name__).lower()
        raise error(_with_way_out(f"{where} is not a valid {words}: {first_problem(invalid)}", way_out)) from invalid


def refuse_newer(where: str, invalid: ValidationError) -> None:
    """Raise NewerRecord if nothing is wrong with a record but keys, or a version, that this Millrace does not know."""
    found = invalid.errors()
    versions = [each["input"] for each in found if each["loc"] == ("version",) and each["type"] == "literal_error"]
    if any(isinstance(version, int) and version > 1 for version in versions):
        unknown = f"version {versions[0]}"
    elif all(each["type"] == "extra_forbidden" for each in found):
        unknown = f"the key {'.'.join(map(str, found[0]['loc']))}"
    else:
        return
    raise NewerRecord(
        f"{where} has {unknown}, which this Millrace does not know: a newer one wrote it. Give the command there, or "
        "install that version here (`millrace --version`); don't repair, move or delete the file"
    ) from invalid


def first_problem(invalid: ValidationError) -> str:
    """Return the first invalid field and its error, as in `rows: Input should be a valid integer`."""
    problem = invalid.errors()[0]
    field = ".".join(str(part) for part in problem["loc"]) or "file"
    return f"{field}: {problem['msg']}"


def _with_way_out(sentence: str, way_out: str) -> str:
    return f"{sentence}; {way_out}" if way_out else sentence


_ROUNDS = 5  # compare-and-swap attempts


def place(store: Store, source: Path, key: str) -> None:
    """Copy a file into the store. An object with equal bytes is kept.

    Raises:
        SupersededError: another process has taken over, so this one may no longer write.
    """
    seen = None
    for _ in range(_ROUNDS):
        try:
            store.upload(source, key, seen)
            return
        except Conflict:
            seen = store.tags(key).get(key)
            if seen is not None and holds(store, key, source):
                return
    raise _crowded(store, key)


def settle(store: Store, key: str, data: bytes) -> None:
    """Write the object that belongs to newly placed files, in place of the replaced files' object.

    Raises:
        SupersededError: another process has taken over, so this one may no longer write.
    """
    seen = None
    for _ in range(_ROUNDS):
        try:
            if seen is None:
                store.create(key, data)
            else:
                store.swap(key, data, seen)
            return
        except Conflict:
            try:
                seen = store.read(key)
            except FileNotFoundError:
                seen = None
            if seen == data:
                return
    raise _crowded(store, key)


def holds(store: Store, key: str, source: Path) -> bool:
    """Return True if the object has the bytes of a local file."""
    if store.sizes(key.rpartition("/")[0]).get(key) != source.stat().st_size:
        return False
    there = store.local(key)
    return there.is_file() and sha256_of(there) == sha256_of(source)


def _crowded(store: Store, key: str) -> SupersededError:
    return SupersededError(
        f"{store.uri}/{key} was written by another process {_ROUNDS} times while this one wanted to; see who works on "
        "it with `millrace status`, and start this again once nobody does"
    )
