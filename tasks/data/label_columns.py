"""Optional training columns of rows: features, label, sample weight, entity; also by an event, such as a click."""

import zlib
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from configs.schema.model import LabelHead, class_name, number_of
from configs.schema.training import HeadsConfig
from configs.schema.validation import EVENT_WEIGHT, EventsConfig
from tasks.data.rows import CORE, LABEL, ROW_ID
from tasks.foundation.errors import DataError


def label_classes(rows: pa.Table, heads: HeadsConfig) -> np.ndarray:
    """Return classes, int64 (rows,): 0, 1, or -1 without a label, between the bounds, or without a head."""
    classes = np.full(rows.num_rows, -1, dtype=np.int64)
    if heads.classification is not None:
        labels = rows[LABEL].to_numpy().astype(np.float64)  # null becomes NaN, and NaN compares false
        classes[labels <= heads.classification.negative_max] = 0
        classes[labels >= heads.classification.positive_min] = 1
    return classes


def pair_mask(rows: pa.Table, heads: HeadsConfig) -> np.ndarray:
    """Return a mask of the positive pairs, bool (rows,)."""
    if heads.contrastive is not None and heads.contrastive.positives_only:
        return label_classes(rows, heads) == 1
    return np.ones(rows.num_rows, dtype=bool)


def pair_rule(heads: HeadsConfig) -> str:
    """Return the rule of `pair_mask` in words, equal if the same rows are pairs: `label >= 4.0`, or `every row`."""
    if heads.contrastive is not None and heads.contrastive.positives_only and heads.classification is not None:
        return f"{LABEL} >= {heads.classification.positive_min}"
    return "every row"


def label_columns(config: Config) -> dict[str, str]:
    """Return the training columns except features, by the configuration key that names each."""
    columns = {f"heads.{name}.column": head.column for name, head in config.heads.of_labels.items()}
    return columns | ({"train.row_weight": config.train.row_weight} if config.train.row_weight else {})


def own_label_columns(config: Config) -> list[str]:
    """Return the training columns that are not core columns."""
    return list(dict.fromkeys(column for column in label_columns(config).values() if column not in CORE))


def used_columns(config: Config) -> list[str]:
    """Return the columns that training uses besides the core columns: features, labels, weights."""
    return list(dict.fromkeys([*feature_columns(config), *own_label_columns(config)]))


def feature_columns(config: Config) -> list[str]:
    """Return the columns of items besides their text."""
    features = config.features
    return list(
        dict.fromkeys([*features.numeric, *features.categorical, *([features.entity] if features.entity else [])])
    )


def label_values(rows: pa.Table, head: LabelHead) -> np.ndarray:
    """Return each row's target for a head, float64 (rows,): the number of a class, or a value.

    NaN: the row has no value or one that the head can't learn, or the column is missing, as in a golden set.
    """
    if head.column not in rows.column_names:
        return np.full(rows.num_rows, np.nan)
    return np.array(head.learnt_of(rows[head.column].to_pylist()), dtype=np.float64)


def cant_be_learnt(rows: pa.Table, head: LabelHead) -> np.ndarray:
    """Return a mask of the rows with a value that the head can't learn, bool (rows,); a missing value is fine."""
    return ~rows[head.column].is_null().to_numpy() & np.isnan(label_values(rows, head))


def bad_weights(weights: pa.ChunkedArray) -> np.ndarray:
    """Return a mask of the invalid weights, bool (rows,): missing, negative or not finite."""
    values = _numbers(weights)
    return ~(np.isfinite(values) & (values >= 0))


def row_weights(rows: pa.Table, column: str | None) -> np.ndarray:
    """Return each row's weight in the losses, float64 (rows,); 1 without a column.

    Raises:
        DataError: a weight is invalid; names row and value. Rows validated with this setting have no invalid weight.
    """
    if column is None:
        return np.ones(rows.num_rows)
    bad = np.flatnonzero(bad_weights(rows[column]))
    if len(bad):
        row, value = (rows[name][int(bad[0])].as_py() for name in (ROW_ID, column))
        raise DataError(
            f"row {row!r} has the weight {value!r} in column {column!r}, which train.row_weight names; a weight is a "
            "number from 0 on. Ingest the span again with --replace, or set train.row_weight=null"
        )
    return _numbers(rows[column])


def _numbers(column: pa.ChunkedArray) -> np.ndarray:
    return np.array([number_of(value) for value in column.to_pylist()], dtype=np.float64)


def entity_codes(rows: pa.Table, column: str | None) -> np.ndarray:
    """Return a non-negative code of each row's entity, int32 (rows,); 0 without a value."""
    if column is None:
        return np.zeros(rows.num_rows, dtype=np.int32)
    values = rows[column].cast(pa.string()).to_pylist()
    codes = {value: 0 if value is None else zlib.crc32(value.encode()) >> 1 for value in set(values)}
    return np.array([codes[value] for value in values], dtype=np.int32)


class LabelledRows(NamedTuple):
    """`rows` have LABEL and EVENT_WEIGHT by their events; `unknown` are as they came."""

    rows: pa.Table
    unknown: pa.Table


def with_labels(table: pa.Table, events: EventsConfig) -> LabelledRows:
    """Give rows the labels and weights of their events; rows with an event that has no name in the table are apart."""
    found = [events.values.get(class_name(value)) for value in table[events.column].to_pylist()]
    known = pa.array([each is not None for each in found], pa.bool_())
    named = [each for each in found if each is not None]
    rows = table.filter(known)
    columns = {LABEL: [each.label for each in named], EVENT_WEIGHT: [each.weight for each in named]}
    for name, values in columns.items():
        column, place = pa.array(values, pa.float64()), rows.schema.get_field_index(name)
        rows = rows.append_column(name, column) if place < 0 else rows.set_column(place, name, column)
    return LabelledRows(rows, table.filter(pa.array([each is None for each in found], pa.bool_())))
