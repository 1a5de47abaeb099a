"""Branches of a lineage, and which of them its runs continue.

A branch is a lineage that goes on from a checkpoint of another one, or begins beside it from nothing. Nothing of the
other is touched; adopting the branch moves one pointer, by compare-and-swap.
"""

from __future__ import annotations

from pydantic import Field, ValidationError

from infra.store import Conflict, Store
from tasks.contracts import CheckpointRef
from tasks.errors import StoreError
from tasks.records import Record


class Branch(Record):
    """`lineages/<branch>/BRANCH.json`."""

    of: str = Field(description="the lineage that it continues, perhaps a branch itself")
    base: CheckpointRef | None = Field(description="the last checkpoint that both share; null: they share none")


class Active(Record):
    """`lineages/<name>/ACTIVE.json`."""

    branch: str = Field(description="the lineage that runs of this name continue")


def branch_of(store: Store, lineage: str) -> Branch | None:
    """What a lineage continues; None for one that is no branch.

    Raises:
        StoreError: the record is not readable; names the file.
    """
    key = _branch_key(lineage)
    try:
        return Branch.model_validate_json(store.read(key))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise StoreError(
            f"{store.uri}/{key} is no record of a branch: {error.errors()[0]['msg']}; restore it from a backup"
        ) from error


def root(store: Store, lineage: str) -> str:
    """The lineage whose runs continue, or might, what is trained on this one: itself, if it is no branch.

    Raises:
        StoreError: the record of a branch is not readable.
    """
    while (branch := branch_of(store, lineage)) is not None:
        lineage = branch.of
    return lineage


def begin(store: Store, lineage: str, of: str, base: CheckpointRef | None) -> None:
    """Make `lineage` a branch of `of`; nothing happens where it is that very branch already.

    Raises:
        Conflict: there is another branch of this name.
        StoreError: its record is not readable.
    """
    branch = Branch(of=of, base=base)
    try:
        store.create(_branch_key(lineage), branch.to_json())
    except Conflict:
        if branch_of(store, lineage) != branch:
            raise Conflict(f"{store.uri}/{_branch_key(lineage)} is of another branch; move the folder away") from None


def active(store: Store, name: str) -> str:
    """The lineage that runs of `name` continue: a branch that was adopted, else itself.

    Raises:
        StoreError: the pointer is not readable; names the file.
    """
    return _read_active(store, name)[1]


def adopt(store: Store, name: str, branch: str, instead_of: str) -> None:
    """Let the runs of `name` continue `branch`, if they continue `instead_of` now, or `branch` already.

    Raises:
        Conflict: they continue something else, or somebody moved the pointer at the same moment.
        StoreError: the pointer is not readable.
    """
    raw, now = _read_active(store, name)
    if now == branch:
        return
    if now != instead_of:
        raise Conflict(f"runs of lineage {name} continue {now} by now, no longer {instead_of}; nothing was adopted")
    store.swap(_active_key(name), Active(branch=branch).to_json(), expected=raw)


def _read_active(store: Store, name: str) -> tuple[bytes | None, str]:
    key = _active_key(name)
    try:
        raw = store.read(key)
        return raw, Active.model_validate_json(raw).branch
    except FileNotFoundError:
        return None, name
    except ValidationError as error:
        raise StoreError(
            f"{store.uri}/{key} is not readable: {error.errors()[0]['msg']}; restore it from a backup, or delete it: "
            f"runs of lineage {name} then continue that lineage itself"
        ) from error


def _branch_key(lineage: str) -> str:
    return f"lineages/{lineage}/BRANCH.json"


def _active_key(name: str) -> str:
    return f"lineages/{name}/ACTIVE.json"
