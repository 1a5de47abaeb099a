"""What a search service must be able to do to serve releases, and the rows that it is given."""

from __future__ import annotations

import re
from typing import NamedTuple, Protocol

import numpy as np
import pyarrow as pa

PARTITION = "partition"  # int32: the partition of the item, so that loading can go on where it stopped

_TABLE = re.compile(r"_r(\d+)_[0-9a-f]{8}")


class Shape(NamedTuple):
    """The vectors of a release."""

    width: int
    fp16: bool


class Target(Protocol):
    """One search service. Every release has a table of its own; consumers read the one that the target serves.

    A table is loaded by partition and is not read by consumers until `serve`. Methods raise StoreError where the
    service fails or can't be reached, ConfigError where it refuses what is asked for.
    """

    where: str  # for people: its kind and name, and where it is

    def serving(self) -> str | None:
        """Return the table that consumers read; None before the first."""
        ...

    def tables(self) -> list[str]:
        """Return the tables of all releases under the target's name, complete or not."""
        ...

    def create(self, table: str, shape: Shape) -> None:
        """Make an empty table, unless it is there."""
        ...

    def rows_by_partition(self, table: str, partitions: int) -> dict[int, int]:
        """Return the number of rows of each partition that has any, numbered from 0."""
        ...

    def load(self, table: str, partition: int, rows: pa.Table, again: bool) -> None:
        """Put all rows of a partition into the table.

        Args:
            rows: columns item_id, text, vector, model_version, partition.
            again: the table may have some rows of it already; they are replaced.
        """
        ...

    def index(self, table: str) -> None:
        """Build the index over all rows, unless it is built. Returns when it is used by queries."""
        ...

    def count(self, table: str) -> int: ...

    def item_ids(self, table: str, partition: int) -> list[str]:
        """Return the ids of all items of a partition, in any order."""
        ...

    def by_other_models(self, table: str, model_version: str) -> int:
        """Return how many rows are not by this model."""
        ...

    def nearest(self, table: str, query: np.ndarray, k: int) -> list[str]:
        """Return the ids of the items with the highest cosine, through the index, best first.

        Args:
            query: float32 (width,), of unit length.
        """
        ...

    def serve(self, table: str) -> None:
        """Let consumers read this table from now on, in one step."""
        ...

    def drop(self, table: str) -> None: ...

    def close(self) -> None: ...


def table_name(target: str, release: int, vectors_sha256: str) -> str:
    """Return the name of a release's table; the checksum tells releases of different workspaces apart."""
    return f"{target}_r{release}_{vectors_sha256[:8]}"


def is_table_of(target: str, table: str) -> bool:
    """Return whether a table holds a release, published under the target's name."""
    return table.startswith(target) and _TABLE.fullmatch(table[len(target) :]) is not None


def release_of(table: str) -> int:
    """Return the number of the release in a table."""
    return int(table.rsplit("_r", 1)[1].split("_")[0])
