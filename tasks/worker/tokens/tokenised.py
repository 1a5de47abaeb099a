"""Rows without their texts: token ids, and keys that are equal where rows have one query, one item text or one item."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from configs.schema.model import Prompts
from tasks.data.rows import ITEM, ITEM_ID, QUERY, normal_text
from tasks.worker.model.features import Side
from tasks.worker.model.prompts import prompts_of
from tasks.worker.model.tokens import tokenize

SIDES: tuple[Side, ...] = ("query", "item")

BEGINS = ("query_begin", "item_begin")  # where the tokens of a row begin among those of all rows
KEYS = ("query_key", "text_key", "item_key")
# All of a row stands together, so that few pages of a file are read for it.
ROW = np.dtype([(name, "<i8") for name in (*BEGINS, *KEYS, "tokens")])


class Recipe(NamedTuple):
    """How texts become tokens: the tokenizer, the most tokens of a query and of an item, special ones included.

    The prompts stand before each query and each item, by the value of a row in the column `entity`.
    """

    tokenizer: Tokenizer
    query_tokens: int
    item_tokens: int
    prompts: Prompts = Prompts()
    entity: str | None = None

    @property
    def tokenizer_sha256(self) -> str:
        """Hex SHA-256 of the tokenizer as it is saved."""
        return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()

    @property
    def columns(self) -> list[str]:
        """The columns that tokens depend on, apart from the texts."""
        return [self.entity] if self.entity is not None and self.prompts.by_entity else []


class Tokenised(NamedTuple):
    """Some rows: `rows` ROW (rows,), `query_ids` and `item_ids` int32 (total tokens,), `ends` the number of each."""

    rows: np.ndarray
    query_ids: np.ndarray
    item_ids: np.ndarray

    @property
    def ends(self) -> tuple[int, int]:
        return len(self.query_ids), len(self.item_ids)


def tokenised(table: pa.Table, recipe: Recipe) -> Tokenised:
    """Return validated rows as tokens and keys; the keys are hashes, int64 and not negative."""
    tokenizer = recipe.tokenizer
    before_query, before_item = (prompts_of(table, side, recipe.prompts, recipe.entity) for side in SIDES)
    query = tokenize(tokenizer, table[QUERY].to_pylist(), recipe.query_tokens, pad=0, prompt=before_query)
    item = tokenize(tokenizer, table[ITEM].to_pylist(), recipe.item_tokens, pad=0, prompt=before_item)
    rows = np.empty(table.num_rows, dtype=ROW)
    rows["query_begin"], rows["item_begin"] = query.offsets[:-1], item.offsets[:-1]
    rows["tokens"] = query.lengths + item.lengths
    rows["query_key"] = text_keys(table[QUERY])
    rows["text_key"] = text_keys(table[ITEM])
    rows["item_key"] = id_keys(table[ITEM_ID])
    return Tokenised(rows, query.ids, item.ids)


def text_keys(texts: pa.ChunkedArray) -> np.ndarray:
    """Return a key of each text, int64 (texts,), not negative; equal for texts that are equal once normalised."""
    return _hashes(map(normal_text, texts.to_pylist()))


def id_keys(item_ids: pa.ChunkedArray) -> np.ndarray:
    """Return a key of each item id, int64 (items,), not negative."""
    return _hashes(item_ids.to_pylist())


def _hashes(texts: Iterable[str]) -> np.ndarray:
    """Return 63 bits of the hash of each text, int64; two of ten million texts share one with odds of 1 to 200,000."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return (np.frombuffer(digests, dtype="<u8") >> np.uint64(1)).astype(np.int64)
