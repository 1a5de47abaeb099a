"""Columns prepared for comparison: numbers, categories, and the lengths, languages and words of texts."""

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pandas.util
import pyarrow as pa

from configs.schema.config import Config
from tasks.contracts.profiles import ColumnKind
from tasks.data.rows import ITEM, ITEM_ID, QUERY, ROW_ID, TIME
from tasks.foundation.languages import languages
from tasks.worker.rows.row_checks import characters
from tasks.worker.rows.signs import COUNTS, count_signs, examples_of

hash_array: Any = pandas.util.hash_array  # unknown to type checkers

_BINS = 4096
_CLEARLY = 0.1  # cosine margin by which each column must be nearer to the other one


def word_counts(texts: Sequence[str]) -> np.ndarray:
    """Return word counts by a hash of the word, int64 (4096,)."""
    hashed = [zlib.crc32(word.encode(errors="replace")) % _BINS for text in texts for word in text.lower().split()]
    return np.bincount(np.asarray(hashed, dtype=np.int64), minlength=_BINS)


def swapped(earlier: Mapping[str, np.ndarray], now: Mapping[str, np.ndarray], columns: tuple[str, str]) -> bool:
    """Return True if each of two columns is clearly nearer to the earlier state of the other one than to its own."""
    first, second = columns
    return all(
        _cosine(now[one], earlier[other]) > _cosine(now[one], earlier[one]) + _CLEARLY
        for one, other in ((first, second), (second, first))
    )


def _cosine(one: np.ndarray, other: np.ndarray) -> float:
    lengths = float(np.linalg.norm(one) * np.linalg.norm(other))
    return float(one @ other) / lengths if lengths else 0.0


LANGUAGE_ROWS = 2_000  # rows sampled from a table to detect languages and count words
_MOST_CATEGORIES = 1_000  # a string column with more distinct values holds texts, not categories


@dataclass(frozen=True)
class Compared:
    """Rows prepared for comparison.

    `series` by column, or by the names of `length_of` and `language_of`: float64 for numbers and lengths, else strings.
    `words` by text column: int64 (bins,), hashed word counts. `types` by column. `signs`: from `count_signs`.
    `items`: a hash of each row's item id, uint64 (rows,). `examples`: from `examples_of`, of the first rows.
    """

    rows: int
    series: Mapping[str, pd.Series]
    words: Mapping[str, np.ndarray]
    types: Mapping[str, str]
    signs: Mapping[str, int]
    items: np.ndarray
    examples: Mapping[str, tuple[str, ...]]


def length_of(column: str) -> str:
    """Return the series name of a column's text lengths."""
    return f"{column} length"


def language_of(column: str) -> str:
    """Return the series name of a column's text languages."""
    return f"{column} language"


def kind_of(table: pa.Table, column: str, config: Config) -> ColumnKind:
    """Return the kind of a column; a string column that no setting names holds categories if few values repeat."""
    kind = table.schema.field(column).type
    if column in (ROW_ID, ITEM_ID):
        return "id"
    if column == TIME or pa.types.is_temporal(kind):
        return "time"
    if column in (QUERY, ITEM):
        return "text"
    named = (head.column for head in config.heads.of_labels.values() if head.of_names)
    if pa.types.is_boolean(kind) or column in (
        *config.features.categorical,
        *config.evaluate.slices,
        *named,
        config.features.entity,
    ):
        return "category"
    if not pa.types.is_string(kind):
        return "number"
    known = table[column].drop_null()
    return "category" if len(known.unique()) <= min(_MOST_CATEGORIES, max(20, len(known) // 2)) else "text"


def compared(table: pa.Table, config: Config) -> Compared:
    """Prepare clean rows, or a sample of them, for comparison."""
    series: dict[str, pd.Series] = {}
    words: dict[str, np.ndarray] = {}
    few = table.take(pa.array(spread(len(table), LANGUAGE_ROWS)))
    for column in table.column_names:
        match kind_of(table, column, config):
            case "number":
                series[column] = pd.Series(table[column].cast(pa.float64()).to_numpy())
            case "category":
                series[column] = table[column].cast(pa.string()).to_pandas().astype(object)
            case "text":
                series[length_of(column)] = pd.Series(characters(table[column]).to_numpy().astype(np.float64))
        if column in (QUERY, ITEM):
            texts = few[column].drop_null().to_pylist()
            series[language_of(column)] = pd.Series(languages(texts), dtype=object)
            words[column] = word_counts(texts)
    types = {field.name: str(field.type) for field in table.schema}
    items = hash_array(table[ITEM_ID].to_pandas().to_numpy().astype(object))
    return Compared(len(table), series, words, types, count_signs(table), items, examples_of(few))


def joined(parts: Sequence[Compared]) -> Compared:
    """Merge parts: the rows of all, the types of the last. A series that some parts lack has only the others' rows."""
    names = list(dict.fromkeys(name for part in parts for name in part.series))
    series = {name: _joined([part.series[name] for part in parts if name in part.series]) for name in names}
    texts = list(dict.fromkeys(name for part in parts for name in part.words))
    words = {name: np.sum([part.words[name] for part in parts if name in part.words], axis=0) for name in texts}
    signs = {name: sum(part.signs[name] for part in parts) for name in COUNTS}
    return Compared(
        sum(part.rows for part in parts),
        series,
        words,
        parts[-1].types if parts else {},
        signs,
        np.concatenate([np.empty(0, np.uint64), *(part.items for part in parts)]),
        parts[-1].examples if parts else {},
    )


def _joined(series: Sequence[pd.Series]) -> pd.Series:
    filled = [each for each in series if len(each)] or series[:1]
    return pd.concat(filled, ignore_index=True)


def spread(rows: int, most: int) -> np.ndarray:
    """Return the positions of at most `most` rows, evenly spread, int64."""
    return np.arange(rows) if rows <= most else np.linspace(0, rows - 1, most).astype(np.int64)
