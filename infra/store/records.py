"""Read records from the workspace, with one error message for unreadable ones."""

import contextlib
import re
from collections.abc import Callable
from typing import TypeVar

from pydantic import ValidationError

from infra.store.base import Conflict, Store
from tasks.foundation.errors import StoreError
from tasks.foundation.records import Record

R = TypeVar("R", bound=Record)


def read_record(store: Store, key: str, kind: type[R], way_out: str = "", error: type[StoreError] = StoreError) -> R:
    """Return the record stored under `key`.

    Args:
        way_out: the remedy in the error message, such as "restore it from a backup".
        error: the class to raise.

    Raises:
        StoreError: it is gone or not readable; names the file, the field and the remedy.
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
        words = re.sub(r"\B([A-Z])", r" \1", kind.__name__).lower()
        raise error(_with_way_out(f"{where} is not a valid {words}: {first_problem(invalid)}", way_out)) from invalid


def first_problem(invalid: ValidationError) -> str:
    """Return the first invalid field and its error, as in `rows: Input should be a valid integer`."""
    problem = invalid.errors()[0]
    field = ".".join(str(part) for part in problem["loc"]) or "file"
    return f"{field}: {problem['msg']}"


def _with_way_out(sentence: str, way_out: str) -> str:
    return f"{sentence}; {way_out}" if way_out else sentence
