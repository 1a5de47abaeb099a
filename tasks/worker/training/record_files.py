"""Arrays in files, which take no memory: their elements are read on access.

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

INDEXED = 128  # every 128th element of a sorted array is kept in memory as a search index
NEAR_BYTES = 2048  # up to this distance, reading through a gap is faster than another read
REMEMBERED, MOST_REMEMBERED = 4, 2**17  # cached reads, and the largest number of records in one


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
        """Return the records at `places`, int64 (n,), not negative; those close together are read at once."""
        name = places.tobytes() if len(places) <= MOST_REMEMBERED else b""
        remembered = self._remembered.get(name)  # another thread may drop it meanwhile
        if remembered is not None:
            return remembered
        if (places[1:] >= places[:-1]).all():
            records = self._ascending(places)
        else:
            order = np.argsort(places, kind="stable")
            back = np.empty_like(order)
            back[order] = np.arange(len(order))
            records = self._ascending(places[order])[back]
        if name:
            self._remembered[name] = records
            if len(self._remembered) > REMEMBERED:
                self._remembered.popitem(last=False)
        return records

    def _ascending(self, places: np.ndarray) -> np.ndarray:
        if not len(places):
            return np.zeros(0, self._kind)
        steps = np.diff(places)
        last = np.append(np.flatnonzero(steps > max(1, NEAR_BYTES // self._kind.itemsize)), len(places) - 1)
        sizes = np.diff(last, prepend=-1)
        firsts = places[last + 1 - sizes]
        counts = places[last] + 1 - firsts
        found = b"".join(map(self._read, firsts.tolist(), counts.tolist()))
        records = np.frombuffer(found, self._kind)
        if len(records) == len(places) and steps.all():
            return records
        shift = np.cumsum(counts) - counts - firsts  # from a place in the file to one among the records read
        return records[places + np.repeat(shift, sizes)]

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
        if not len(self):
            return np.zeros(len(values), dtype=np.int64)
        block_of = np.maximum(np.searchsorted(self._index, values) - 1, 0)
        blocks, number = np.unique(block_of, return_inverse=True)
        begins = blocks * INDEXED
        sizes = np.minimum(begins + INDEXED, len(self)) - begins
        before = np.cumsum(sizes) - sizes  # elements of the blocks before, which are ascending together too
        some = self[np.repeat(begins - before, sizes) + np.arange(sizes.sum())]
        return (begins - before)[number] + np.searchsorted(some, values)

    @functools.cached_property
    def _index(self) -> np.ndarray:
        return np.asarray(self[np.arange(0, len(self), INDEXED)])
