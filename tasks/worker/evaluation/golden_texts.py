"""Rows of the golden set that were trained on, found while the rows of all spans pass by."""

from collections import Counter
from typing import Self

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.base import Store
from tasks.data.rows import ITEM, QUERY, normal_text


class GoldenTexts:
    """The normalised texts of the golden set, and which of them rows of training have."""

    def __init__(self, golden: pa.Table | None) -> None:
        self._rows = Counter(_texts(golden) if golden is not None else ())
        self._trained: set[tuple[str, str]] = set()

    @classmethod
    def read(cls, store: Store, key: str | None) -> Self:
        """Return those of a golden set by its key; None: there is none, and nothing is looked for."""
        return cls(pq.read_table(store.local(key), columns=[QUERY, ITEM]) if key is not None else None)

    def add(self, training: pa.Table) -> None:
        """Look for the golden set's texts in rows that were trained on, which have QUERY and ITEM."""
        if self._rows:
            self._trained |= self._rows.keys() & set(_texts(training))

    @property
    def trained(self) -> int:
        """How many rows of the golden set were found."""
        return sum(self._rows[texts] for texts in self._trained)


def _texts(rows: pa.Table) -> list[tuple[str, str]]:
    query, item = ([normal_text(text) for text in rows[column].to_pylist()] for column in (QUERY, ITEM))
    return list(zip(query, item, strict=True))
