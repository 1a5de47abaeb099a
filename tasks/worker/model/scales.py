"""The scale of a numeric column, from any number of values: they wait in a file, and some are in memory at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import IO

import numpy as np
from pydantic import Field

from tasks.foundation.records import Record

READ_VALUES = 2**20  # at once
_LOWEST, _HIGHEST = 0.001, 0.999


class Scale(Record):
    """A numeric column is clipped, and becomes (value - mean) / deviation; a missing value becomes 0, the mean."""

    mean: float
    deviation: float
    # Null: made before numbers were clipped.
    low: float | None = Field(default=None, description="the 0.1 % quantile of the first run's rows")
    high: float | None = Field(default=None, description="the 99.9 % quantile")


def add_values(file: IO[bytes], values: np.ndarray) -> None:
    """Write the values that are known, not NaN, to the end of a file; float64 (values,)."""
    file.write(values[~np.isnan(values)].tobytes())


def scale_of(file: IO[bytes]) -> Scale:
    """Return the scale of all values in a file that `add_values` wrote.

    The quantiles are values that are there, so that nothing is clipped where the rows are few. In memory are 0.1 % of
    the values, and those that are read at once.
    """
    count = file.tell() // np.dtype(np.float64).itemsize
    if not count:
        return Scale(mean=0.0, deviation=1.0)
    low = -_highest(file, math.floor((count - 1) * _LOWEST), sign=-1)
    high = _highest(file, count - 1 - math.ceil((count - 1) * _HIGHEST), sign=1)
    mean = math.fsum(np.clip(part, low, high).sum() for part in _parts(file)) / count
    squares = math.fsum(((np.clip(part, low, high) - mean) ** 2).sum() for part in _parts(file))
    return Scale(mean=mean, deviation=math.sqrt(squares / count) or 1.0, low=low, high=high)


def _highest(file: IO[bytes], before: int, sign: int) -> float:
    """Return the highest of the values times `sign` but for `before` higher ones."""
    kept = np.empty(0)
    for part in _parts(file):
        kept = np.concatenate([kept, sign * part])
        if len(kept) > before + 1:
            kept = np.partition(kept, -before - 1)[-before - 1 :].copy()
    return float(kept.min())


def _parts(file: IO[bytes]) -> Iterator[np.ndarray]:
    file.seek(0)
    while raw := file.read(READ_VALUES * np.dtype(np.float64).itemsize):
        yield np.frombuffer(raw, dtype=np.float64)
