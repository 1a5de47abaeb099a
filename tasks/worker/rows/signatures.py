"""Signatures of rows, by which near-duplicates are found without their texts.

The similarity of two rows is the number of runs in both, divided by the number of runs in either (Jaccard); a run is
three consecutive words of the query or of the item. Signatures are MinHash bands (Broder 1997): two rows share a key
with a probability of 99.95 % at a similarity of 0.9, and of 95 % at 0.8.
"""

import functools
import hashlib
import re
import zlib
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tasks.data.query_places import mix_bits
from tasks.data.rows import ITEM, ITEM_ID, QUERY, ROW_ID, normal_text

PLACE = "place"  # uint32: number of the row in its span
KEYS = "keys"  # list of uint64: two rows are compared if they have the same key at the same list position
RUNS = "runs"  # list of uint32, distinct: hashes of the runs; empty without `near`

EXACT_KEYS = 2  # the first keys hash id and item, and the texts; rows that share one are duplicates without comparison
BANDS, HASHES_IN_BAND = 10, 6
WORDS_IN_RUN = 3

# A word is letters and digits; in scripts without spaces each character is a word.
_WORDS = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\u3040-\u30ff\u3400-\u9fff]+")
_SEPARATOR = "\n"
_SHIFT = np.uint64(32)
_LOW = np.uint64(2**32 - 1)


def signatures(rows: pa.Table, first_place: int, near: bool) -> pa.Table:
    """Return ROW_ID, PLACE, KEYS and RUNS of validated rows, counting places from `first_place`.

    Args:
        near: add runs and band keys, to find near-duplicates; False: exact keys only.
    """
    query, item = ([normal_text(text) for text in rows[column].to_pylist()] for column in (QUERY, ITEM))
    ids = zip(rows[ROW_ID].to_pylist(), rows[ITEM_ID].to_pylist(), strict=True)
    keys = [np.array([_number(f"id{_SEPARATOR.join(pair)}") for pair in ids], dtype=np.uint64)]
    keys += [np.array([_number(f"text{_SEPARATOR.join(pair)}") for pair in zip(query, item, strict=True)], np.uint64)]
    counts = np.zeros(rows.num_rows, dtype=np.int64)
    runs = np.empty(0, dtype=np.uint32)
    if near and rows.num_rows:
        runs, counts = _runs([text for pair in zip(query, item, strict=True) for text in pair])
        keys += _band_keys(runs, counts)
    table = np.stack(keys, axis=1)
    return pa.table(
        {
            ROW_ID: rows[ROW_ID],
            PLACE: pa.array(np.arange(first_place, first_place + rows.num_rows, dtype=np.uint32)),
            KEYS: _lists(table.ravel(), np.full(rows.num_rows, table.shape[1])),
            RUNS: _lists(runs, counts),
        }
    )


def _runs(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct runs of all rows, uint32, row after row, and the number of runs of each row, at least 1.

    Args:
        texts: query and item of the first row, of the second, and so on.
    """
    codes: list[int] = []
    lengths = np.empty(len(texts), dtype=np.int64)
    for number, text in enumerate(texts):
        words = [_code(word) for word in _WORDS.findall(text)]
        words += [0] * (WORDS_IN_RUN - len(words))
        codes += words
        lengths[number] = len(words)
    word = np.array(codes, dtype=np.uint64)
    in_text = np.arange(len(word)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    begins = np.flatnonzero(in_text <= np.repeat(lengths, lengths) - WORDS_IN_RUN)
    text_of = np.repeat(np.arange(len(texts)), lengths - WORDS_IN_RUN + 1)
    mixed = (text_of % 2).astype(np.uint64)  # the same words are different runs in a query and in an item
    for offset in range(WORDS_IN_RUN):
        mixed = mix_bits(mixed + word[begins + offset])
    row = (text_of // 2).astype(np.uint64)
    distinct = np.unique((row << _SHIFT) | (mixed >> _SHIFT))
    counts = np.bincount((distinct >> _SHIFT).astype(np.int64), minlength=len(texts) // 2)
    return (distinct & _LOW).astype(np.uint32), counts


def _band_keys(runs: np.ndarray, counts: np.ndarray) -> list[np.ndarray]:
    """Return one key per band, uint64 (rows,): a hash of the minima of several hash functions over the runs."""
    begins = np.cumsum(counts) - counts
    wide, keys = runs.astype(np.uint64), []
    for band in range(BANDS):
        key = np.full(len(counts), band, dtype=np.uint64)
        for number in range(HASHES_IN_BAND):
            factor, summand = (np.uint64(_number(f"{name}{band}.{number}")) for name in ("factor", "summand"))
            lowest = np.minimum.reduceat((wide * (factor | np.uint64(1)) + summand) >> _SHIFT, begins)
            key = mix_bits(key + lowest)
        keys.append(key)
    return keys


@functools.lru_cache(maxsize=2**17)
def _code(word: str) -> int:
    return zlib.crc32(word.encode()) + 1


def _number(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def _lists(values: np.ndarray, counts: np.ndarray) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))
