"""Numeric and categorical columns as model input; the first run fixes scales and vocabularies."""

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


def fit_features(rows: pa.Table, config: FeaturesConfig) -> FeatureTable:
    """Return scales and vocabularies of the rows of the first run, vocabularies in alphabetical order."""
    numeric = {}
    for name in config.numeric:
        values = _numbers(rows[name])
        known = values[~np.isnan(values)]
        deviation = float(known.std()) if len(known) else 0.0
        numeric[name] = Scale(mean=float(known.mean()) if len(known) else 0.0, deviation=deviation or 1.0)
    categorical = {}
    for name in config.categorical:
        categorical[name] = tuple(sorted(rows[name].cast(pa.string()).drop_null().unique().to_pylist()))
    return FeatureTable(numeric=numeric, categorical=categorical, query=config.query)


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


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return column.cast(pa.float64()).to_numpy().astype(np.float64)
