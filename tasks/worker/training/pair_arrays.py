"""The training rows of a run as arrays without texts: file format, one record per row, and access for batches."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from tasks.worker.model.features import FeatureArrays, FeatureTable
from tasks.worker.model.tokens import TokenLists
from tasks.worker.training.known_pairs import KnownPositives
from tasks.worker.training.record_files import Column, RecordFile
from tasks.worker.training.row_keys import ROWS_AT_ONCE, Buckets
from tasks.worker.training.tokenised import ITEM_IDS, QUERY_IDS, ROW, ROWS


def write_popularity(records: Path, kind: np.dtype, rows: int, key: str, path: Path, only: str | None = None) -> None:
    """Write log(c * M / N) of each row, float32 (rows,): 0 if all keys are equally frequent.

    c is the number of counted rows with the row's key, M the number of distinct keys, and N the number of counted rows:
    c / N is the probability of the key in a random row, relative to 1 / M. Rows that don't count get 0. Memory: four
    bytes per row.

    Args:
        records: a file with the rows, and perhaps more after them.
        key: the field with the keys, int64 and not negative.
        path: the file to write; temporary files are put beside it.
        only: a field; rows with 0 in it don't count. None: all rows count.
    """
    buckets, counts, keys = Buckets(path.parent, path.name, rows, 2), np.zeros(rows, dtype=np.float32), 0
    for start, some in _pieces(records, kind, rows):
        counted = some[only] > 0 if only is not None else np.ones(len(some), dtype=bool)
        buckets.add(np.stack([some[key][counted], start + np.flatnonzero(counted)], axis=1))
    for bucket in buckets:
        _, which, count = np.unique(bucket[:, 0], return_inverse=True, return_counts=True)
        counts[bucket[:, 1]] = count[which]
        keys += len(count)
    there = counts > 0
    counts[there] = np.log(counts[there] * (keys / max(int(there.sum()), 1)))
    counts.tofile(path)


def _pieces(records: Path, kind: np.dtype, rows: int) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the rows in pieces, each with the number of its first row."""
    with records.open("rb") as file:
        for start in range(0, rows, ROWS_AT_ONCE):
            yield start, np.fromfile(file, kind, min(ROWS_AT_ONCE, rows - start))


CLASSES = 2  # number of label classes
POPULARITY = ("item.popularity", "query.popularity")  # files, written only with `heads.contrastive.logq`
_FACTS = "facts.json"


@dataclass(frozen=True)
class HardNegatives:
    """Items that some pairs of a run get as extra negatives.

    `of_row` int32 (rows, per_query): numbers of items, then -1. `item_key` and `text_key` int64 (items,): see `Pairs`.
    """

    of_row: np.ndarray
    tokens: TokenLists
    features: FeatureArrays
    item_key: np.ndarray
    text_key: np.ndarray


@dataclass(frozen=True)
class Pairs:
    """All training rows of a run, without their texts, as arrays of the same length, or columns of files.

    - `tokens` int64: tokens of query and item together.
    - `item_key`, `text_key`, `query_key` int64: equal for rows with the same item, normalised item text, or normalised
      query.
    - `known`: the relevant items of each query, also from rows of other runs.
    - `pair` float32: 1 if query and item belong together, else 0.
    - `label_class` int64: 0, 1 or -1 for unlabelled; `class_weight` float32 (CLASSES,): weight of each class in the
      classification loss.
    - `labels` float32 (rows, heads): target of each label head in `balance`, NaN if missing; `balance`: a head's
      weight per value, float32 (values,), empty if all are equal.
    - `weight` float32: weight of the row in all losses; `mean_weight`: its mean.
    - `entity` int32: equal for rows with the same value of `features.entity`.
    - `own_rows`: the first rows are of the run's own spans, the others are replayed.
    - `popularity` float32 (rows,): of each row's item, and of its query among the pairs, from `write_popularity`; None
      without `heads.contrastive.logq`.
    """

    query: TokenLists
    item: TokenLists
    query_features: FeatureArrays
    item_features: FeatureArrays
    tokens: np.ndarray
    item_key: np.ndarray
    text_key: np.ndarray
    query_key: np.ndarray
    known: KnownPositives
    pair: np.ndarray
    label_class: np.ndarray
    class_weight: np.ndarray
    labels: np.ndarray
    balance: dict[str, np.ndarray]
    weight: np.ndarray
    mean_weight: float
    entity: np.ndarray
    own_rows: int
    popularity: tuple[np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.query)

    def take(self, rows: np.ndarray, own: np.ndarray, queries: np.ndarray) -> Pairs:
        """Return some rows, in memory, with the tokens of `own` rows and the known items of `queries`.

        Args:
            rows: int64 (n,), ascending.
            own, queries: bool (n,).
        """
        columns = ("tokens", "item_key", "text_key", "query_key", "pair", "label_class", "labels", "weight", "entity")
        taken = {name: getattr(self, name)[rows] for name in columns}
        return replace(
            self,
            **taken,
            query=self.query.take(rows, own),
            item=self.item.take(rows, own),
            query_features=self.query_features.take(rows),
            item_features=self.item_features.take(rows),
            known=self.known.part(np.unique(taken["query_key"][queries])),
            popularity=None if self.popularity is None else (self.popularity[0][rows], self.popularity[1][rows]),
        )


def row_type(features: FeatureTable, label_heads: int) -> np.dtype:
    """Return the record type of a row in a file: tokens, keys, class, labels, pair, weight, features."""
    numeric, categorical = len(features.numeric), len(features.categorical)
    own = [
        ("label_class", "<i8"),
        ("query_categorical", "<i8", (categorical,)),
        ("item_categorical", "<i8", (categorical,)),
        ("query_numeric", "<f4", (numeric,)),
        ("item_numeric", "<f4", (numeric,)),
        ("pair", "<f4"),
        ("weight", "<f4"),
        ("entity", "<i4"),
        ("labels", "<f4", (label_heads,)),
    ]
    return np.dtype([*ROW.descr, *own], align=True)


def write_facts(
    folder: Path, own_rows: int, class_weight: np.ndarray, balance: Mapping[str, np.ndarray], mean_weight: float
) -> None:
    """Write the fields of `Pairs` that are not per row."""
    facts = {
        "own_rows": own_rows,
        "class_weight": class_weight.tolist(),
        "balance": {head: each.tolist() for head, each in balance.items()},
        "mean_weight": mean_weight,
    }
    (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")


def _read_facts(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / _FACTS).read_text(encoding="utf-8"))
    return found


def open_pair_files(folder: Path, known: KnownPositives, features: FeatureTable, pad: int) -> Pairs:
    """Open the rows in the files of a folder, which may be deleted afterwards; batches read from the open files.

    Args:
        folder: ROWS holds records of `row_type`, with an extra one for the ends of the last row's tokens; the facts are
            from `write_facts`.
        pad: the padding id of tokens.
    """
    ids = [cast(np.ndarray, Column(RecordFile(folder / name, np.int32))) for name in (QUERY_IDS, ITEM_IDS)]
    file = RecordFile(folder / ROWS, row_type(features, len(_read_facts(folder)["balance"])))
    return _pairs(folder, known, lambda name: cast(np.ndarray, Column(file, name)), ids, pad)


def read_pair_files(folder: Path, known: KnownPositives, features: FeatureTable, pad: int) -> Pairs:
    """Like `open_pair_files`, but in memory."""
    ids = [np.fromfile(folder / name, np.int32) for name in (QUERY_IDS, ITEM_IDS)]
    rows = np.fromfile(folder / ROWS, row_type(features, len(_read_facts(folder)["balance"])))
    return _pairs(folder, known, lambda name: rows[name], ids, pad)


def _pairs(
    folder: Path, known: KnownPositives, column: Callable[[str], np.ndarray], ids: Sequence[np.ndarray], pad: int
) -> Pairs:
    def of(name: str) -> np.ndarray:
        return column(name)[:-1]

    facts = _read_facts(folder)
    return Pairs(
        query=TokenLists(ids[0], column("query_begin"), pad),
        item=TokenLists(ids[1], column("item_begin"), pad),
        query_features=FeatureArrays(of("query_numeric"), of("query_categorical")),
        item_features=FeatureArrays(of("item_numeric"), of("item_categorical")),
        tokens=of("tokens"),
        item_key=of("item_key"),
        text_key=of("text_key"),
        query_key=of("query_key"),
        known=known,
        pair=of("pair"),
        label_class=of("label_class"),
        class_weight=np.array(facts["class_weight"], dtype=np.float32),
        labels=of("labels"),
        balance={head: np.array(each, dtype=np.float32) for head, each in facts["balance"].items()},
        weight=of("weight"),
        mean_weight=facts["mean_weight"],
        entity=of("entity"),
        own_rows=facts["own_rows"],
        popularity=_popularity(folder),
    )


def _popularity(folder: Path) -> tuple[np.ndarray, np.ndarray] | None:
    if not (folder / POPULARITY[0]).exists():
        return None
    item, query = (cast(np.ndarray, Column(RecordFile(folder / name, np.float32))) for name in POPULARITY)
    return item, query
