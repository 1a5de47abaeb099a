"""A sample of rows, and distinct counts, in bounded memory; the same however the rows are split into pieces."""

from typing import Any

import numpy as np
import pandas.util
import pyarrow as pa

from tasks.data.rows import ROW_ID

hash_array: Any = pandas.util.hash_array  # unknown to type checkers

_HASHES = 4096  # kept per column; fewer distinct values are counted exactly


class RowSample:
    """A uniform sample: the `most` rows with the smallest id hashes, in their order."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._tables: list[pa.Table] = []
        self._hashes: list[np.ndarray] = []
        self._held = 0

    def add(self, table: pa.Table) -> None:
        """Add rows; all tables have the same columns."""
        self._tables.append(table)
        self._hashes.append(_hashed(table[ROW_ID]))
        self._held += len(table)
        if self._held > 2 * self._most:
            self._thin()

    def table(self) -> pa.Table:
        """Return the sample; at least one table was added."""
        if self._held > self._most:
            self._thin()
        return pa.concat_tables(self._tables)

    def _thin(self) -> None:
        table, hashes = pa.concat_tables(self._tables), np.concatenate(self._hashes)
        kept = np.sort(np.argsort(hashes, kind="stable")[: self._most])
        self._tables, self._hashes, self._held = [table.take(pa.array(kept))], [hashes[kept]], len(kept)


class DistinctCounts:
    """Estimated number of distinct values per column, from the k smallest hashes (Bar-Yossef et al. 2002)."""

    def __init__(self) -> None:
        self._smallest: dict[str, np.ndarray] = {}

    def add(self, table: pa.Table) -> None:
        """Add rows."""
        for name in table.column_names:
            hashes = np.unique(_hashed(table[name].drop_null().unique()))
            known = self._smallest.get(name, np.empty(0, dtype=np.uint64))
            self._smallest[name] = np.union1d(known, hashes)[:_HASHES]

    def of(self, column: str) -> int:
        """Return the number of distinct non-null values of a column."""
        held = self._smallest.get(column, np.empty(0, dtype=np.uint64))
        if len(held) < _HASHES:
            return len(held)
        return round((_HASHES - 1) / (float(held[-1]) / 2**64))


def _hashed(column: pa.ChunkedArray | pa.Array) -> np.ndarray:
    """Return uint64 hashes of a column without nulls, the same in every process."""
    if pa.types.is_temporal(column.type):
        column = column.cast(pa.int64())
    values = column.to_pandas().to_numpy()
    return np.asarray(hash_array(values if values.dtype.kind in "biuf" else values.astype(object)))
