"""Numeric and categorical columns as model input. The first run whose values differ fixes a column's scale for good.

Vocabularies grow.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute
from pydantic import Field, field_validator

from configs.schema.model import FeaturesConfig
from tasks.foundation.records import Record

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

READ_VALUES = 2**20  # per read
_LOWEST, _HIGHEST = 0.001, 0.999


class Scale(Record):
    """A numeric column is clipped, and becomes (value - mean) / deviation; a missing value becomes 0, the mean."""

    mean: float
    deviation: float
    low: float = Field(description="0.1 % quantile of the rows of the run that fixed it")
    high: float = Field(description="99.9 % quantile; as `low`: no run has had values that differ, so all become 0")

    @field_validator("low", "high", mode="before")
    @classmethod
    def _without_values(cls, bound: Any) -> Any:
        return 0.0 if bound is None else bound  # as older checkpoints say of a column that had no value

    @property
    def is_flat(self) -> bool:
        """True if every value becomes 0, until a run fixes the scale."""
        return self.low == self.high


def add_values(file: IO[bytes], values: np.ndarray) -> None:
    """Append the values that are not NaN to a file; float64 (values,)."""
    file.write(values[~np.isnan(values)].tobytes())


def scale_of(file: IO[bytes]) -> Scale:
    """Return the scale of all values in a file that `add_values` wrote.

    Quantiles are not interpolated, so that nothing is clipped if rows are few. Memory holds 0.1 % of the values and one
    chunk of READ_VALUES.
    """
    count = file.tell() // np.dtype(np.float64).itemsize
    if not count:
        return Scale(mean=0.0, deviation=1.0, low=0.0, high=0.0)
    low = -_highest(file, math.floor((count - 1) * _LOWEST), sign=-1)
    high = _highest(file, count - 1 - math.ceil((count - 1) * _HIGHEST), sign=1)
    mean = math.fsum(np.clip(part, low, high).sum() for part in _parts(file)) / count
    if low == high:
        return Scale(mean=low, deviation=1.0, low=low, high=low)
    squares = math.fsum(((np.clip(part, low, high) - mean) ** 2).sum() for part in _parts(file))
    return Scale(mean=mean, deviation=math.sqrt(squares / count), low=low, high=high)


def _highest(file: IO[bytes], before: int, sign: int) -> float:
    """Return the highest value of `sign` times the values, after `before` higher ones."""
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


FILE = "features.json"
NEVER_SEEN, FIRST = 1, 2  # category indexes: a value never seen, and the first known category
Side = Literal["query", "item"]


class FeatureTable(Record):
    """How columns become inputs. Category index 0 is 'absent', 1 'never seen'; `categorical` is numbered from 2."""

    numeric: dict[str, Scale]
    categorical: dict[str, tuple[str, ...]]
    query: tuple[str, ...]
    rows: dict[str, int] = Field(description="embedding rows of each categorical feature, spare rows included")
    entity: str | None = Field(default=None, description="the column that selects a text's prompt; not an input")

    @property
    def columns(self) -> list[str]:
        """The item columns besides the text from which vectors are computed."""
        return list(dict.fromkeys([*self.numeric, *self.categorical, *([self.entity] if self.entity else [])]))

    @property
    def query_columns(self) -> list[str]:
        """The query columns besides the text: their features and the entity."""
        return list(dict.fromkeys([*self.query, *([self.entity] if self.entity else [])]))

    @property
    def categories(self) -> list[int]:
        """Rows of each categorical feature's embedding."""
        return [self.rows[name] for name in self.categorical]


@dataclass(frozen=True)
class FeatureArrays:
    """`numeric` float32 (rows, numeric features), `categorical` int64 (rows, categorical features)."""

    numeric: np.ndarray
    categorical: np.ndarray

    def take(self, rows: np.ndarray) -> FeatureArrays:
        """Return the features of the numbered rows, int64, in memory."""
        return FeatureArrays(self.numeric[rows], self.categorical[rows])

    def at(self, rows: np.ndarray) -> FeatureArrays:
        """Return the features of the numbered rows, int64; zeros for row -1."""
        real = (rows >= 0)[:, None]
        return FeatureArrays(
            np.where(real, self.numeric[rows], 0).astype(np.float32),
            np.where(real, self.categorical[rows], 0).astype(np.int64),
        )


def fit_features(rows: Iterable[pa.Table], config: FeaturesConfig) -> FeatureTable:
    """Return scales and alphabetical vocabularies, fitted on the first run's rows, which are streamed once."""
    scales, values = _fitted(rows, config.numeric, config.categorical)
    return FeatureTable(
        numeric=scales,
        categorical={name: tuple(sorted(seen)) for name, seen in values.items()},
        query=config.query,
        rows={name: _with_spare(len(seen)) for name, seen in values.items()},
        entity=config.entity,
    )


def _fitted(
    rows: Iterable[pa.Table], numeric: Iterable[str], categorical: Iterable[str]
) -> tuple[dict[str, Scale], dict[str, set[str]]]:
    """Return the scale of each numeric column, and the values of each categorical one; the rows are streamed once."""
    values: dict[str, set[str]] = {name: set() for name in categorical}
    with contextlib.ExitStack() as files:
        numbers = {name: files.enter_context(tempfile.TemporaryFile()) for name in numeric}
        for table in rows if numbers or values else ():
            for name, file in numbers.items():
                add_values(file, _numbers(table[name]))
            _see(values, table)
        return {name: scale_of(file) for name, file in numbers.items()}, values


def extend_features(table: FeatureTable, rows: Iterable[pa.Table]) -> FeatureTable:
    """Return the table with scales of columns that were flat, and new categories appended, in alphabetical order."""
    flat = [name for name, scale in table.numeric.items() if scale.is_flat]
    scales, values = _fitted(rows, flat, table.categorical)
    grown = {name: (*known, *sorted(values[name].difference(known))) for name, known in table.categorical.items()}
    held = {
        name: spare if FIRST + len(grown[name]) <= spare else _with_spare(len(grown[name]))
        for name, spare in table.rows.items()
    }
    fixed = {name: scale for name, scale in scales.items() if not scale.is_flat}
    return table.model_copy(update={"numeric": table.numeric | fixed, "categorical": grown, "rows": held})


def can_extend(table: FeatureTable, rows: pa.Table) -> np.ndarray:
    """Return bool (rows,): True for a row with a category that the table lacks, or with a value of a flat column."""
    found = np.zeros(rows.num_rows, dtype=bool)
    for name, scale in table.numeric.items():
        if scale.is_flat:
            found |= ~np.isnan(_numbers(rows[name]))
    for name, known in table.categorical.items():
        column = rows[name].cast(pa.string())
        new = pc.invert(pc.is_in(column, value_set=pa.array([*known, None], pa.string())))
        found |= new.to_numpy()
    return found


def _see(values: dict[str, set[str]], rows: pa.Table) -> None:
    for name, seen in values.items():
        seen.update(rows[name].cast(pa.string()).drop_null().unique().to_pylist())


def _with_spare(categories: int) -> int:
    """Return a power of two with spare rows, so that few new categories don't change the model's shapes."""
    return 1 << (categories + 2).bit_length()


def encode_features(table: FeatureTable, rows: pa.Table, side: Side) -> FeatureArrays:
    """Return the features of each row; on the query side, features outside `features.query` are absent."""
    numeric = np.zeros((rows.num_rows, len(table.numeric)), dtype=np.float32)
    categorical = np.zeros((rows.num_rows, len(table.categorical)), dtype=np.int64)
    for column, (name, scale) in enumerate(table.numeric.items()):
        if side == "item" or name in table.query:
            clipped = np.clip(_numbers(rows[name]), scale.low, scale.high)
            scaled = (clipped - scale.mean) / scale.deviation
            numeric[:, column] = np.nan_to_num(scaled, nan=0.0)
    for column, (name, values) in enumerate(table.categorical.items()):
        if side == "item" or name in table.query:
            number = {None: 0, **{value: position for position, value in enumerate(values, start=FIRST)}}
            found = rows[name].cast(pa.string()).to_pylist()
            categorical[:, column] = [number.get(value, NEVER_SEEN) for value in found]
    return FeatureArrays(numeric, categorical)


def concatenate_features(parts: Sequence[FeatureArrays]) -> FeatureArrays:
    """Concatenate the features of one or more `parts`."""
    return FeatureArrays(
        np.concatenate([part.numeric for part in parts]), np.concatenate([part.categorical for part in parts])
    )


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return column.cast(pa.float64()).to_numpy().astype(np.float64)
