"""Other relevant items of a query, which are ignored when ranking its own item (the filtered rank).

Relevant are the items that any row pairs with the same query, and items with an equal text. Queries and texts are
compared by `normal_text`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tasks.data.query_places import hash_queries
from tasks.data.rows import normal_text


@dataclass(frozen=True)
class Relevant:
    """The relevant items of each query, and the items of each text."""

    query: np.ndarray  # int64 (rows,): number of the row's query
    of_query: tuple[np.ndarray, np.ndarray]  # items by query, as `_lists` makes them
    text: np.ndarray  # int64 (items,): number of the item's text
    of_text: tuple[np.ndarray, np.ndarray]  # items by text

    def other_relevant_items(self, row: int, own: int) -> np.ndarray:
        """Return the other relevant items of a row, int64, without its own item; may hold duplicates."""
        starts, items = self.of_query
        paired = items[starts[self.query[row]] : starts[self.query[row] + 1]]
        starts, items = self.of_text
        alike = items[starts[self.text[own]] : starts[self.text[own] + 1]]
        found = np.concatenate([paired, alike])
        return found[found != own]

    def competitors(self, own: np.ndarray) -> np.ndarray:
        """Return the number of items that are not relevant for each row, int32 (rows,).

        Args:
            own: int64 (rows,), each row's own item.
        """
        others = (len(np.unique(self.other_relevant_items(row, item))) for row, item in enumerate(own.tolist()))
        ignored = np.fromiter(others, dtype=np.int32, count=len(own))
        return np.int32(len(self.text) - 1) - ignored


class RelevantTexts(NamedTuple):
    """The relevant items of rows, by text; they are ignored when a row's own item is ranked.

    `texts` uint64 (texts,), sorted: hashes of the texts of all relevant items; `starts` and `rows`, int64: text t is
    relevant for rows[starts[t]:starts[t + 1]].
    """

    texts: np.ndarray
    starts: np.ndarray
    rows: np.ndarray

    @classmethod
    def of(cls, queries: np.ndarray, own: np.ndarray, pairs: tuple[np.ndarray, np.ndarray]) -> "RelevantTexts":
        """Index the relevant items of rows.

        Args:
            queries: int64 (rows,), hashes of the rows' queries.
            own: uint64 (rows,), text hashes of the rows' own items.
            pairs: hashes of queries, int64 (pairs,), and of their relevant texts, uint64 (pairs,).
        """
        order = np.argsort(pairs[0], kind="stable")
        keys, right = pairs[0][order], pairs[1][order]
        first, last = np.searchsorted(keys, queries), np.searchsorted(keys, queries, side="right")
        counts = last - first
        texts = right[np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())]
        texts = np.concatenate([texts, own])
        rows = np.concatenate([np.repeat(np.arange(len(queries)), counts), np.arange(len(queries))])
        distinct, which = np.unique(texts, return_inverse=True)
        which, rows = np.unique(np.stack([which, rows]), axis=1)  # by text, then by row
        starts = np.concatenate([[0], np.cumsum(np.bincount(which, minlength=len(distinct)))]).astype(np.int64)
        return cls(distinct, starts, rows)

    def pairs_of(self, keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of a row and the place of a relevant text, int64 (pairs,) each, ordered by row.

        Args:
            keys: uint64 (texts,), from `hash_texts`.
        """
        at = np.searchsorted(self.texts, keys).clip(max=max(0, len(self.texts) - 1))
        places = np.flatnonzero(self.texts[at] == keys) if len(self.texts) else np.zeros(0, np.int64)
        first, counts = self.starts[at[places]], self.starts[at[places] + 1] - self.starts[at[places]]
        rows = self.rows[np.repeat(first - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())]
        order = np.argsort(rows, kind="stable")
        return rows[order], np.repeat(places, counts)[order]


def hash_texts(texts: Iterable[str]) -> np.ndarray:
    """Return a hash of each normalised text, uint64 (texts,)."""
    return hash_queries(texts).view(np.uint64)


def number_texts(texts: Iterable[str]) -> np.ndarray:
    """Number the distinct normalised texts from 0; return the number of each text, int64 (texts,)."""
    numbers: dict[str, int] = {}
    return np.array([numbers.setdefault(normal_text(text), len(numbers)) for text in texts], dtype=np.int64)


def find_relevant(keys: np.ndarray, texts: np.ndarray, pair_keys: np.ndarray, pair_items: np.ndarray) -> Relevant:
    """Return the relevant items of the queries.

    Args:
        keys: int64 (rows,), `hash_queries` of the rows' queries.
        texts: int64 (items,), `number_texts` of the corpus.
        pair_keys: int64 (pairs,), `hash_queries` of known pairs; queries of no row are ignored.
        pair_items: int64 (pairs,), the corpus item of each known pair.
    """
    queries, query = np.unique(keys, return_inverse=True)
    of_text = _lists(texts, np.arange(len(texts)), len(texts))
    known = np.isin(pair_keys, queries)
    number = np.searchsorted(queries, pair_keys[known])
    pairs = np.unique(np.stack([number, texts[pair_items[known]]], axis=1), axis=0)
    starts, items = of_text
    counts = starts[pairs[:, 1] + 1] - starts[pairs[:, 1]]
    # For each pair of a query and a text, all items with the text.
    places = np.repeat(starts[pairs[:, 1]] - (np.cumsum(counts) - counts), counts) + np.arange(counts.sum())
    of_query = _lists(np.repeat(pairs[:, 0], counts), items[places], len(queries))
    return Relevant(query, of_query, texts, of_text)


def _lists(group: np.ndarray, values: np.ndarray, groups: int) -> tuple[np.ndarray, np.ndarray]:
    """Return int64 (groups + 1,) starts and int64 (values,): group g has the values starts[g] to starts[g + 1]."""
    order = np.argsort(group, kind="stable")
    return np.concatenate([[0], np.cumsum(np.bincount(group, minlength=groups))]).astype(np.int64), values[order]
