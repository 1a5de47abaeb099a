"""Hold all releases, by a person: no run and no refresh changes the current one, though a rollback can. And lift it."""

import getpass
import socket

from infra.store.base import Conflict, Store
from infra.store.records import settle
from tasks.contracts.runs import Hold, Release
from tasks.contracts.workspace import HOLD
from tasks.foundation.clock import now
from tasks.foundation.errors import ConfigError
from tasks.runs.releases import Pointer, is_made, no_current, read, read_pointer, swap_pointer


def hold(store: Store, reason: str) -> Hold:
    """Hold all releases of the workspace.

    Raises:
        ConfigError: no reason was given, releases are held already, or there is none yet.
        StoreError: the pointer is not readable.
    """
    if not reason.strip():
        raise ConfigError('a hold has a reason, which others see: millrace hold --reason "why"')
    made = Hold(by=me(), at=now(), reason=reason.strip())
    while True:
        raw, pointer = _pointer(store)
        if pointer.hold == made:  # the reply to the write was lost, and another process moved the pointer since
            return made
        if pointer.hold is not None:
            raise ConfigError(f"{pointer.hold.sentence} Before another: millrace hold --off")
        if _moved(store, raw, pointer, made):
            return made


def lift(store: Store) -> tuple[Hold, tuple[Release, ...]]:
    """End the hold; return it, and the releases that were made meanwhile, which the next run or refresh decides.

    The hold stays on record in `releases/holds/`.

    Raises:
        ConfigError: releases are not held.
        StoreError: a record is not readable.
    """
    held: Hold | None = None
    while True:
        raw, pointer = _pointer(store)
        if pointer.hold is None and held is None:
            raise ConfigError(f"releases of {store.uri} are not held")
        if pointer.hold is None:  # the reply to the write was lost, and another process moved the pointer since
            break
        held = pointer.hold
        if _moved(store, raw, pointer, None):
            break
    assert held is not None
    lifted = held.model_copy(update={"lifted_by": me(), "lifted_at": now()})
    settle(store, HOLD.key(at=lifted.at.replace(":", "")), lifted.to_json())
    return lifted, tuple(read(store, number) for number in pointer.undecided if is_made(store, number))


def why_waiting(store: Store, made: Release) -> str:
    """Return the sentence about a release that a hold keeps back; empty if none does.

    Raises:
        StoreError: the pointer is not readable.
    """
    _, pointer = read_pointer(store)
    if pointer is None or pointer.hold is None or made.number not in pointer.undecided:
        return ""
    return (
        f"{pointer.hold.sentence} Release {made.number} is made, and becomes current with the next run or refresh "
        "after: millrace hold --off"
    )


def _pointer(store: Store) -> tuple[bytes | None, Pointer]:
    raw, pointer = read_pointer(store)
    if pointer is None:
        raise ConfigError(no_current(store))
    return raw, pointer


def _moved(store: Store, raw: bytes | None, pointer: Pointer, hold: Hold | None) -> bool:
    try:
        swap_pointer(store, pointer.model_copy(update={"hold": hold}), expected=raw)
    except Conflict:  # a release was made at the same moment; look again
        return False
    return True


def me() -> str:
    """Return the current user and host, as in `ana@build-7`."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may have a user without a name
        user = "somebody"
    return f"{user}@{socket.gethostname()}"
