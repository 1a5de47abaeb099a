"""Branches of a lineage, and which of them its runs continue.

A branch is a lineage that continues from a checkpoint of another lineage, or begins without one. The other lineage
is never changed; adopting the branch moves one pointer, by compare-and-swap.
"""

from pydantic import Field

from infra.store.base import Conflict, Store
from infra.store.records import find_record, find_with_bytes
from tasks.contracts.references import CheckpointRef
from tasks.contracts.workspace import ACTIVE, BRANCH
from tasks.foundation.records import Record


class Branch(Record):
    """`lineages/<branch>/BRANCH.json`."""

    of: str = Field(description="the lineage that it continues, perhaps a branch itself")
    base: CheckpointRef | None = Field(description="the last checkpoint that both share; null: they share none")


class Active(Record):
    """`lineages/<name>/ACTIVE.json`."""

    branch: str = Field(description="the lineage that runs of this name continue")


def branch_of(store: Store, lineage: str) -> Branch | None:
    """Return the branch record of a lineage; None if it is not a branch.

    Raises:
        StoreError: the record is not readable; names the file.
    """
    return find_record(store, BRANCH.key(lineage=lineage), Branch, "restore it from a backup")


def root(store: Store, lineage: str) -> str:
    """Return the lineage from which a chain of branches starts; the lineage itself if it is not a branch.

    Raises:
        StoreError: the record of a branch is not readable.
    """
    while (branch := branch_of(store, lineage)) is not None:
        lineage = branch.of
    return lineage


def begin(store: Store, lineage: str, of: str, base: CheckpointRef | None) -> None:
    """Make `lineage` a branch of `of`; do nothing if it already is that branch.

    Raises:
        Conflict: there is another branch of this name.
        StoreError: its record is not readable.
    """
    branch = Branch(of=of, base=base)
    try:
        store.create(BRANCH.key(lineage=lineage), branch.to_json())
    except Conflict:
        if branch_of(store, lineage) != branch:
            raise Conflict(
                f"{store.uri}/{BRANCH.key(lineage=lineage)} is of another branch; move the folder away"
            ) from None


def active(store: Store, name: str) -> str:
    """Return the lineage that runs of `name` continue: the adopted branch, else `name` itself.

    Raises:
        StoreError: the pointer is not readable; names the file.
    """
    return _read_active(store, name)[1]


def adopt(store: Store, name: str, branch: str, instead_of: str) -> None:
    """Let the runs of `name` continue `branch`, if they continue `instead_of` now, or `branch` already.

    Raises:
        Conflict: they continue something else, or another process moved the pointer at the same moment.
        StoreError: the pointer is not readable.
    """
    raw, now = _read_active(store, name)
    if now == branch:
        return
    if now != instead_of:
        raise Conflict(f"runs of lineage {name} continue {now} now, no longer {instead_of}; nothing was adopted")
    store.swap(ACTIVE.key(lineage=name), Active(branch=branch).to_json(), expected=raw)


def _read_active(store: Store, name: str) -> tuple[bytes | None, str]:
    way_out = f"restore it from a backup, or delete it: runs of lineage {name} then continue that lineage itself"
    raw, active = find_with_bytes(store, ACTIVE.key(lineage=name), Active, way_out)
    return raw, active.branch if active else name
