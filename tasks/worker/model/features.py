"""Numeric and categorical columns as model input; the first run fixes scales and vocabularies."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa

from configs.schema.training import FeaturesConfig
from tasks.foundation.records import Record

FILE = "features.json"
Side = Literal["query", "item"]


class Scale(Record):
    """A numeric column becomes (value - mean) / deviation; a missing value becomes 0, the mean."""

    mean: float
    deviation: float


class FeatureTable(Record):
    """How columns become inputs. Category 0 is 'absent or never seen', category i > 0 is `categorical[name][i - 1]`."""

    numeric: dict[str, Scale]
    categorical: dict[str, tuple[str, ...]]
    query: tuple[str, ...]

    @property
    def categories(self) -> list[int]:
        """Rows of each categorical feature's embedding."""
        return [len(values) + 1 for values in self.categorical.values()]


@dataclass(frozen=True)
class FeatureArrays:
    """`numeric` float32 (rows, numeric features), `categorical` int64 (rows, categorical features)."""

    numeric: np.ndarray
    categorical: np.ndarray


def fit_features(rows: Iterable[pa.Table], config: FeaturesConfig) -> FeatureTable:
    """Return scales and vocabularies of the rows of the first run, vocabularies in alphabetical order."""
    numbers: dict[str, list[np.ndarray]] = {name: [np.empty(0)] for name in config.numeric}
    values: dict[str, set[str]] = {name: set() for name in config.categorical}
    for table in rows if numbers or values else ():
        for name, parts in numbers.items():
            parts.append(_numbers(table[name]))
        for name, seen in values.items():
            seen.update(table[name].cast(pa.string()).drop_null().unique().to_pylist())
    return FeatureTable(
        numeric={name: _scale(np.concatenate(parts)) for name, parts in numbers.items()},
        categorical={name: tuple(sorted(seen)) for name, seen in values.items()},
        query=config.query,
    )


def _scale(values: np.ndarray) -> Scale:
    known = values[~np.isnan(values)]
    if not len(known):
        return Scale(mean=0.0, deviation=1.0)
    return Scale(mean=float(known.mean()), deviation=float(known.std()) or 1.0)


def encode_features(table: FeatureTable, rows: pa.Table, side: Side) -> FeatureArrays:
    """Return the features of each row. On the query side, features not in `features.query` are absent."""
    numeric = np.zeros((rows.num_rows, len(table.numeric)), dtype=np.float32)
    categorical = np.zeros((rows.num_rows, len(table.categorical)), dtype=np.int64)
    for column, (name, scale) in enumerate(table.numeric.items()):
        if side == "item" or name in table.query:
            scaled = (_numbers(rows[name]) - scale.mean) / scale.deviation
            numeric[:, column] = np.nan_to_num(scaled, nan=0.0)
    for column, (name, values) in enumerate(table.categorical.items()):
        if side == "item" or name in table.query:
            number = {value: position + 1 for position, value in enumerate(values)}
            categorical[:, column] = [number.get(value, 0) for value in rows[name].cast(pa.string()).to_pylist()]
    return FeatureArrays(numeric, categorical)


def joined_features(parts: Sequence[FeatureArrays]) -> FeatureArrays:
    """Return the features of all rows of `parts`, one after another; there is at least one part."""
    return FeatureArrays(
        np.concatenate([part.numeric for part in parts]), np.concatenate([part.categorical for part in parts])
    )


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return column.cast(pa.float64()).to_numpy().astype(np.float64)
