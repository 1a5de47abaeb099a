"""Arrays in files, of which single elements are read when they are asked for: no part of them stays in memory.

They are read and not mapped. A kernel maps up to a megabyte of the page cache for one element, and counts it as memory
of the process: a batch of random rows would hold hundreds of megabytes.
"""

from __future__ import annotations

import functools
import os
import weakref
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import DTypeLike

INDEXED = 512  # a sorted array is searched by every so many-th element, which are kept in memory


class File:
    """A file, open as long as something reads from it; it may be deleted meanwhile."""

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_RDONLY)
        self.bytes = os.fstat(self.handle).st_size
        weakref.finalize(self, os.close, self.handle)


class Column:
    """One field of the records of a file, or all of a file of numbers; indexed like an array, and read-only."""

    def __init__(self, file: File, kind: DTypeLike, field: str | None = None) -> None:
        self._file, self._kind, self._field = file, np.dtype(kind), field
        self._rows = range(file.bytes // self._kind.itemsize)

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, rows: slice) -> Column: ...
    @overload
    def __getitem__(self, rows: np.ndarray) -> np.ndarray: ...
    def __getitem__(self, rows: slice | np.ndarray) -> Column | np.ndarray:
        """Return a part of the column, unread; or the elements at `rows`, int64 (n,), where -1 is the last one."""
        if isinstance(rows, slice):
            part = Column.__new__(Column)
            vars(part).update(vars(self), _rows=self._rows[rows])
            vars(part).pop("_index", None)
            return part
        places = self._rows.start + np.where(rows < 0, rows + len(self), rows)
        firsts = np.flatnonzero(np.diff(places, prepend=-2) != 1)  # neighbours are read at once
        counts = np.diff(firsts, append=len(places))
        found = b"".join(map(self._read, places[firsts].tolist(), counts.tolist()))
        records = np.frombuffer(found, self._kind)
        return records if self._field is None else records[self._field].copy()

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """Return all of it, in memory."""
        return np.array(self[np.arange(len(self))], dtype=dtype)

    def searchsorted(self, values: np.ndarray, side: str = "left", sorter: None = None) -> np.ndarray:
        """Return where `values` belong in this ascending column, as `np.searchsorted` asks for it."""
        begins = np.maximum(np.searchsorted(self._index, values) - 1, 0) * INDEXED
        found = [
            begin + np.searchsorted(self[np.arange(begin, min(begin + INDEXED, len(self)))], value)
            for begin, value in zip(begins.tolist(), values, strict=True)
        ]
        return np.array(found, dtype=np.int64)

    @functools.cached_property
    def _index(self) -> np.ndarray:
        return np.asarray(self[np.arange(0, len(self), INDEXED)])

    def _read(self, first: int, count: int) -> bytes:
        size, begin = count * self._kind.itemsize, first * self._kind.itemsize
        found = os.pread(self._file.handle, size, begin)
        if len(found) < size:
            raise IndexError(f"bytes {begin} to {begin + size} of a file of {self._file.bytes}")
        return found


class Records:
    """A file of records of one kind; its fields are columns."""

    def __init__(self, path: Path, kind: np.dtype) -> None:
        self._file, self._kind = File(path), kind

    def __getitem__(self, field: str) -> Column:
        return Column(self._file, self._kind, field)
