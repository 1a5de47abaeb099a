"""Mined items as input of the batches: their tokens, features and keys."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from configs.schema.config import Config
from tasks.data.items import TEXT
from tasks.data.rows import ITEM, ITEM_ID
from tasks.worker.model.features import encode_features
from tasks.worker.model.tokens import tokenize
from tasks.worker.negatives.folder import Found
from tasks.worker.negatives.known import text_hashes
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.pair_arrays import HardNegatives, Pairs

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


def negative_arrays(
    found: Found, pairs: Pairs, training: Iterable[pa.Table], parts: ModelParts, config: Config
) -> HardNegatives | None:
    """Return the hard negatives of the pairs, None if there are none.

    Args:
        training: the first rows of the pairs, in their order; those replayed from earlier spans get no hard negatives.
    """
    if not found.items.num_rows:
        return None
    item_key, text_key = _keys(pairs, found, training)
    longest = config.train.max_tokens.item
    return HardNegatives(
        of_row=np.pad(found.of_row, ((0, len(pairs) - len(found.of_row)), (0, 0)), constant_values=-1),
        tokens=tokenize(parts.tokenizer, found.items[TEXT].to_pylist(), longest, parts.model.pad),
        features=encode_features(parts.features, found.items, "item"),
        item_key=item_key,
        text_key=text_key,
    )


def _keys(pairs: Pairs, found: Found, training: Iterable[pa.Table]) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys of the items among the pairs' own, int64 (items,) each; -1 where no row has the item or text."""
    ids, hashes = found.items[ITEM_ID].combine_chunks(), text_hashes(found.items[TEXT])
    texts, which = np.unique(hashes, return_inverse=True)
    item_key, text_key = np.full(len(hashes), -1, dtype=np.int64), np.full(len(texts), -1, dtype=np.int64)
    start = 0
    for table in training:
        rows = np.arange(start, start + table.num_rows)
        item = pc.index_in(table[ITEM_ID], value_set=ids).fill_null(-1).to_numpy()
        item_key[item[item >= 0]] = pairs.item_key[rows[item >= 0]]
        of_rows = text_hashes(table[ITEM])
        place = np.minimum(np.searchsorted(texts, of_rows), len(texts) - 1)
        same = texts[place] == of_rows
        text_key[place[same]] = pairs.text_key[rows[same]]
        start += table.num_rows
    return item_key, text_key[which]
