"""Arrays in files, whose elements are read on access, so that they take no memory.

Files are read, not mapped: for one element a kernel maps up to a megabyte of the page cache and counts it as memory of
the process, so a batch of random rows would hold hundreds of megabytes.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections import OrderedDict
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import DTypeLike

INDEXED = 512  # every 512th element of a sorted array is kept in memory as a search index
REMEMBERED, MOST_REMEMBERED = 4, 2**14  # cached reads, and the largest number of records in one


class RecordFile:
    """An open file of records of one type; the file may be deleted meanwhile.

    The last few reads are cached, because the fields of a batch's rows are read one after another.
    """

    def __init__(self, path: Path, kind: DTypeLike) -> None:
        self._handle = os.open(path, os.O_RDONLY)
        self._kind = np.dtype(kind)
        self._bytes = os.fstat(self._handle).st_size
        self._remembered: OrderedDict[bytes, np.ndarray] = OrderedDict()
        weakref.finalize(self, os.close, self._handle)

    def __len__(self) -> int:
        return self._bytes // self._kind.itemsize

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the records at `places`, int64 (n,), not negative; neighbours are read together."""
        name = places.tobytes() if len(places) <= MOST_REMEMBERED else b""
        remembered = self._remembered.get(name)  # another thread may drop it meanwhile
        if remembered is not None:
            return remembered
        firsts = np.flatnonzero(np.diff(places, prepend=-2) != 1)
        counts = np.diff(firsts, append=len(places))
        found = b"".join(map(self._read, places[firsts].tolist(), counts.tolist()))
        records = np.frombuffer(found, self._kind)
        if name:
            self._remembered[name] = records
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
        return records

    def _read(self, first: int, count: int) -> bytes:
        size, begin = count * self._kind.itemsize, first * self._kind.itemsize
        found = os.pread(self._handle, size, begin)
        if len(found) < size:
            raise IndexError(f"bytes {begin} to {begin + size} of a file of {self._bytes}")
        return found


class Column:
    """One field of a file's records, or a whole file of numbers; read-only, indexed like an array."""

    def __init__(self, file: RecordFile, field: str | None = None, rows: range | None = None) -> None:
        self._file, self._field = file, field
        self._rows = range(len(file)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, rows: slice) -> Column: ...
    @overload
    def __getitem__(self, rows: np.ndarray) -> np.ndarray: ...
    def __getitem__(self, rows: slice | np.ndarray) -> Column | np.ndarray:
        """Return a part of the column, unread; or the elements at `rows`, int64 (n,), with -1 for the last one."""
        if isinstance(rows, slice):
            return Column(self._file, self._field, self._rows[rows])
        records = self._file.at(self._rows.start + np.where(rows < 0, rows + len(self), rows))
        return records if self._field is None else records[self._field]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Return the whole column, in memory."""
        return np.array(self[np.arange(len(self))], dtype=dtype)

    def searchsorted(self, values: np.ndarray, side: str = "left", sorter: None = None) -> np.ndarray:
        """Return the insertion places of `values` in this ascending column; called by `np.searchsorted`."""
        block_of = np.maximum(np.searchsorted(self._index, values) - 1, 0)
        order = np.argsort(block_of, kind="stable")
        blocks, firsts = np.unique(block_of[order], return_index=True)
        found = np.zeros(len(values), dtype=np.int64)
        for begin, here in zip((blocks * INDEXED).tolist(), np.split(order, firsts[1:]), strict=False):
            some = self[np.arange(begin, min(begin + INDEXED, len(self)))]
            found[here] = begin + np.searchsorted(some, values[here])
        return found

    @functools.cached_property
    def _index(self) -> np.ndarray:
        return np.asarray(self[np.arange(0, len(self), INDEXED)])
