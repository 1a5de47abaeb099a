"""The training rows of a run as arrays, without their texts: in files, one record a row, and as batches read them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from tasks.worker.model.features import FeatureArrays, FeatureTable
from tasks.worker.model.tokens import TokenLists
from tasks.worker.tokens.cache import ITEM_IDS, QUERY_IDS, ROWS
from tasks.worker.tokens.columns import Column, File, Records
from tasks.worker.tokens.positives import Positives
from tasks.worker.tokens.tokenised import ROW


@dataclass(frozen=True)
class Pairs:
    """All training rows of a run, without their texts, as arrays of the same length, or columns of files.

    `tokens` int64 are those of query and item together. `item_key` int64 is equal for rows about one item, `text_key`
    int64 for rows with one normalised item text, and `query_key` int64 for rows with one normalised query; `positives`
    has the items, and the texts, of each query; `pair` float32 is 1 where query and item belong together; `label_class`
    int64 is 0, 1 or -1 for unlabelled.
    """

    query: TokenLists
    item: TokenLists
    query_features: FeatureArrays
    item_features: FeatureArrays
    tokens: np.ndarray
    item_key: np.ndarray
    text_key: np.ndarray
    query_key: np.ndarray
    positives: tuple[Positives, Positives]
    pair: np.ndarray
    label_class: np.ndarray

    def __len__(self) -> int:
        return len(self.query)


def row_type(features: FeatureTable) -> np.dtype:
    """Return the record of a row in a file: its tokens and keys, its class, whether it is a pair, its features."""
    numeric, categorical = len(features.numeric), len(features.categorical)
    own = [
        ("label_class", "<i8"),
        ("query_categorical", "<i8", (categorical,)),
        ("item_categorical", "<i8", (categorical,)),
        ("query_numeric", "<f4", (numeric,)),
        ("item_numeric", "<f4", (numeric,)),
        ("pair", "<f4"),
    ]
    return np.dtype([*ROW.descr, *own], align=True)


def open_pair_files(folder: Path, features: FeatureTable, pad: int) -> Pairs:
    """Return the rows in the files of a folder, which may be deleted afterwards; batches read theirs from the files.

    Args:
        folder: ROWS holds records of `row_type`, one more than there are rows, for the ends of the last row's tokens.
        pad: the id that pads tokens.
    """
    ids = [cast(np.ndarray, Column(File(folder / name), np.int32)) for name in (QUERY_IDS, ITEM_IDS)]
    rows = cast(np.ndarray, Records(folder / ROWS, row_type(features)))  # read like an array of records
    return _pairs(folder, rows, ids, pad)


def read_pair_files(folder: Path, features: FeatureTable, pad: int) -> Pairs:
    """Return the same in memory, except for the positives."""
    ids = [np.fromfile(folder / name, np.int32) for name in (QUERY_IDS, ITEM_IDS)]
    return _pairs(folder, np.fromfile(folder / ROWS, row_type(features)), ids, pad)


def _pairs(folder: Path, rows: np.ndarray, ids: Sequence[np.ndarray], pad: int) -> Pairs:
    def of(name: str) -> np.ndarray:
        return rows[name][:-1]

    return Pairs(
        query=TokenLists(ids[0], rows["query_begin"], pad),
        item=TokenLists(ids[1], rows["item_begin"], pad),
        query_features=FeatureArrays(of("query_numeric"), of("query_categorical")),
        item_features=FeatureArrays(of("item_numeric"), of("item_categorical")),
        tokens=of("tokens"),
        item_key=of("item_key"),
        text_key=of("text_key"),
        query_key=of("query_key"),
        positives=(Positives.open(folder, "item_key"), Positives.open(folder, "text_key")),
        pair=of("pair"),
        label_class=of("label_class"),
    )
