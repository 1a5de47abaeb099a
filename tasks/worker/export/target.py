"""The interface of a search service that serves releases, and the names of its tables."""

from __future__ import annotations

import re
import secrets
from contextlib import AbstractContextManager
from hashlib import sha256
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from tasks.foundation.errors import StoreError

PARTITION = "partition"  # column, int32: the item's partition, so that an interrupted load can resume

CANDIDATES = 10  # items for each hit that the index of a form gives, to be compared again by their vectors

BESIDE = "_b"  # suffix of the second table of a release, loaded beside a damaged one

_CHANGING = r"_c[0-9a-f]{8}"  # suffix of a copy that is being changed; another one at each try

_TABLE = re.compile(rf"_r(\d+)_[0-9a-f]{{8}}({BESIDE})?({_CHANGING})?")


class DamagedTable(StoreError):
    """A table is missing, can't be read, or differs from the release."""


class Row(NamedTuple):
    """An item in a table; `vector` is float32 (width,), of any length."""

    text: str
    vector: np.ndarray


class Shape(NamedTuple):
    """The vectors of a release, and the model that embeds their queries."""

    width: int
    fp16: bool
    of_queries: str


class Owner(NamedTuple):
    """The workspace, by its address, and the lineage that publish to a target; without branches of the lineage."""

    workspace: str
    lineage: str


class Index(NamedTuple):
    """The index of a table for the cosine: its name in the service and the rows that it covers."""

    name: str
    rows: int


class Target(Protocol):
    """One search service. Every release has its own table; consumers read the served table.

    A table is loaded by partition, and consumers don't read it before `serve`. Methods raise StoreError if the service
    fails or can't be reached, DamagedTable if it says that a table or a part of it is not there, ConfigError if it
    refuses the request.
    """

    where: str  # for messages: kind, name and address

    def serving(self) -> str | None:
        """Return the table to which consumers are sent, also if it is gone; None before the first."""
        ...

    def owner(self) -> Owner | None:
        """Return the owner of the served table, as `serve` wrote it; None if nothing is served or no owner is named."""
        ...

    def tables(self) -> list[str]:
        """Return the tables of all releases under the target's name, including incomplete ones and copies."""
        ...

    def create(self, table: str, shape: Shape) -> None:
        """Create an empty table unless it exists."""
        ...

    def rows_by_partition(self, table: str, partitions: int) -> dict[int, int]:
        """Return the number of rows of each non-empty partition, numbered from 0."""
        ...

    def load(self, table: str, partition: int, rows: pa.Table, again: bool) -> None:
        """Insert all rows of a partition into the table.

        Args:
            rows: columns item_id, text, vector, model_version, partition.
            again: the table may already have rows of this partition; they are replaced.
        """
        ...

    def index(self, table: str) -> Index | None:
        """Build the index over all rows unless it has a whole and valid one; return it once queries use it.

        Returns:
            The index as the service describes it; None if the service searches exactly, without one.
        """
        ...

    def count(self, table: str) -> int: ...

    def item_ids(self, table: str, partition: int) -> list[str]:
        """Return the ids of all items of a partition, in any order."""
        ...

    def rows_of(self, table: str, item_ids: list[str]) -> dict[str, Row]:
        """Return the rows of some items by id; an item that the table lacks has none."""
        ...

    def count_other_models(self, table: str, model_version: str) -> int:
        """Return the number of rows by other models."""
        ...

    def nearest(self, table: str, query: np.ndarray, k: int) -> list[str]:
        """Return the ids of the items with the highest cosine, through the index, best first.

        Args:
            query: float32 (width,), of unit length.
        """
        ...

    def serve(self, table: str, owner: Owner) -> None:
        """Make consumers read this table from now on, in one step, and name its owner there."""
        ...

    def erase(self, table: str, item_ids: list[str]) -> None:
        """Delete items from a table for good, also from its index and its earlier states; consumers may read it."""
        ...

    def drop(self, table: str) -> None: ...

    def close(self) -> None: ...


@runtime_checkable
class Changeable(Protocol):
    """A target whose tables can take over the changes of a refresh, instead of a load of all its vectors."""

    def changing(self, table: str, into: str) -> AbstractContextManager[str]:
        """Give the name of the table to change: consumers see nothing of the changes before the end of the block.

        After it there is the table `into`, with its index. Either consumers read it, and `table` is gone, or they read
        `table` until `serve`. An exception in the block undoes all.
        """
        ...

    def change(self, table: str, rows: pa.Table, gone: list[str]) -> None:
        """Insert rows, in place of earlier ones of the same items, and delete the items that are `gone`.

        Args:
            rows: columns as of `load`.
        """
        ...


def table_names(target: str, release: int, vectors_sha256: str, narrow: str = "") -> tuple[str, str]:
    """Return the two names that a release's table can have; the checksum distinguishes releases of two workspaces.

    The release is loaded under the second name if the table with the first is served and damaged, and the other way
    round.

    Args:
        narrow: the target's `narrowing`; with another one, the release gets another table.
    """
    digits = sha256(f"{vectors_sha256} {narrow}".encode()).hexdigest() if narrow else vectors_sha256
    name = f"{target}_r{release}_{digits[:8]}"
    return name, f"{name}{BESIDE}"


def is_table_of(target: str, table: str) -> bool:
    """Return True if a table holds a release published under the target's name."""
    return table.startswith(target) and _TABLE.fullmatch(table[len(target) :]) is not None


def name_of_copy(table: str) -> str:
    """Return the name of a copy that is to become a table; no other process has a copy of this name."""
    return f"{table}_c{secrets.token_hex(4)}"


def is_copy(table: str) -> bool:
    """Return True if a table is a copy that is being changed, or was left so by a killed publication."""
    return re.search(rf"{_CHANGING}$", table) is not None


def release_of(table: str) -> int:
    """Return the number of the release in a table."""
    return int(table.rsplit("_r", 1)[1].split("_")[0])
