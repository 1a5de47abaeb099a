"""Arrays in files, of which single elements are read when they are asked for: no part of them stays in memory.

They are read and not mapped. A kernel maps up to a megabyte of the page cache for one element, and counts it as memory
of the process: a batch of random rows would hold hundreds of megabytes.
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

INDEXED = 512  # a sorted array is searched by every so many-th element, which are kept in memory
REMEMBERED, MOST_REMEMBERED = 4, 2**14  # reads, and the most records of one


class File:
    """A file of records of one kind, open as long as something reads from it; it may be deleted meanwhile.

    The last few reads of some records are remembered: the fields of a batch's rows are asked for one after another.
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
        """Return the records at `places`, int64 (n,) and not negative; neighbours are read at once."""
        name = places.tobytes() if len(places) <= MOST_REMEMBERED else b""
        remembered = self._remembered.get(name)  # another thread may forget it meanwhile
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
    """One field of the records of a file, or all of a file of numbers; indexed like an array, and read-only."""

    def __init__(self, file: File, field: str | None = None, rows: range | None = None) -> None:
        self._file, self._field = file, field
        self._rows = range(len(file)) if rows is None else rows

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, rows: slice) -> Column: ...
    @overload
    def __getitem__(self, rows: np.ndarray) -> np.ndarray: ...
    def __getitem__(self, rows: slice | np.ndarray) -> Column | np.ndarray:
        """Return a part of the column, unread; or the elements at `rows`, int64 (n,), where -1 is the last one."""
        if isinstance(rows, slice):
            return Column(self._file, self._field, self._rows[rows])
        records = self._file.at(self._rows.start + np.where(rows < 0, rows + len(self), rows))
        return records if self._field is None else records[self._field]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Return all of it, in memory."""
        return np.array(self[np.arange(len(self))], dtype=dtype)

    def searchsorted(self, values: np.ndarray, side: str = "left", sorter: None = None) -> np.ndarray:
        """Return where `values` belong in this ascending column, as `np.searchsorted` asks for it."""
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
