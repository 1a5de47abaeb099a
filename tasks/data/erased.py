"""Values that `millrace erase` took out, by hash: ingest and readers leave them out for ever.

So no export that comes again, and no file restored from a backup, brings an erased row or item back. A record holds a
hash of the value alone.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from pydantic import Field

from infra.store.base import Store
from infra.store.records import read_record
from tasks.contracts.workspace import ERASED, ERASURE
from tasks.foundation.clock import Moment
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record

_WHOLE = re.compile(r"(-?\d+)\.0+")


class Erased(Record):
    """`erased/<key>.json`: rows with one value of one column are erased; of item_id, the item itself too."""

    version: Literal[1] = 1
    column: str = Field(description="name of the column in the spans")
    sha256: str = Field(description="SHA-256 of the column's name and the value, as `hash_of_value` makes it")
    at: Moment


def hash_of_value(column: str, value: object) -> str:
    """Return the hex SHA-256 of a value of a column, alike for all values that `text_of` gives one text."""
    return hashlib.sha256(f"{column}\n{text_of(value)}".encode(errors="surrogatepass")).hexdigest()


def text_of(value: object) -> str:
    """Return a value as the text by which it is compared: `7` of 7.0 and of "7.0", `true` of True.

    The forms in which Unicode writes the same characters are one text, in NFC: é as one sign, or as e with an accent.
    """
    text = str(value).lower() if isinstance(value, bool) else unicodedata.normalize("NFC", str(value))
    whole = _WHOLE.fullmatch(text)
    return whole[1] if whole else text


class Erasures:
    """All erased values of a workspace, by column."""

    def __init__(self, hashes: Mapping[str, frozenset[str]]) -> None:
        self._hashes = hashes

    def __bool__(self) -> bool:
        return bool(self._hashes)

    def any_of(self, values: Mapping[str, object]) -> bool:
        """Return True if a value of these columns is erased; null never is."""
        return any(
            hash_of_value(column, value) in hashes
            for column, hashes in self._hashes.items()
            if (value := values.get(column)) is not None
        )

    def mask(self, table: pa.Table | pa.RecordBatch) -> np.ndarray:
        """Return bool (rows,): True for a row with an erased value."""
        found = np.zeros(table.num_rows, dtype=bool)
        for column, hashes in self._hashes.items():
            if column in table.schema.names:
                found |= _in(table[column], lambda value, c=column, h=hashes: hash_of_value(c, value) in h)
        return found

    def without(self, table: pa.Table) -> pa.Table:
        """Return the rows without an erased value."""
        found = self.mask(table) if self else np.zeros(0, dtype=bool)
        return table.filter(pa.array(~found)) if found.any() else table

    def without_items(self, batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
        """Yield the rows of batches without an erased value."""
        for batch in batches:
            found = self.mask(batch) if self else np.zeros(0, dtype=bool)
            yield batch.filter(pa.array(~found)) if found.any() else batch


def equal_to(column: pa.ChunkedArray | pa.Array, value: str) -> np.ndarray:
    """Return bool (rows,): True where a column has a value, compared as `text_of` gives it."""
    return _in(column, lambda each: text_of(each) == value)


def _in(column: pa.ChunkedArray | pa.Array, holds: Any) -> np.ndarray:
    """Return bool (rows,): each distinct value is asked for once."""
    encoded = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if not pa.types.is_dictionary(encoded.type):
        encoded = encoded.dictionary_encode()
    values = [each is not None and holds(each) for each in encoded.dictionary.to_pylist()]
    places = encoded.indices.fill_null(len(values)).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.array([*values, False], dtype=bool)[places]


def read_erased(store: Store) -> Erasures:
    """Return all erased values of a workspace. Raises StoreError: a record is not readable; names it."""
    found: dict[str, set[str]] = {}
    for key in store.list(ERASED.within()):
        if ERASED.match(key):
            one = read_record(store, key, Erased, "restore it from a backup, or erase the value again")
            found.setdefault(one.column, set()).add(one.sha256)
    return Erasures({column: frozenset(hashes) for column, hashes in found.items()})


def refuse_unfinished(store: Store) -> None:
    """Raise ConfigError if an erasure was interrupted: its files don't match their manifests yet."""
    left = [key for key in store.list(ERASURE.within()) if ERASURE.match(key)]
    if left:
        raise ConfigError(
            f"{store.uri}/{left[0]}: an erasure was interrupted, and files are not whole until it is finished; give "
            "the same `millrace erase` once more"
        )
