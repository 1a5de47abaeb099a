"""Mined items as input of the batches: their tokens, features and keys."""

import numpy as np

from configs.schema.config import Config
from tasks.data.items import TEXT
from tasks.data.rows import ITEM_ID
from tasks.worker.model.features import encode_features
from tasks.worker.model.prompts import prompts_of
from tasks.worker.model.tokens import tokenize
from tasks.worker.search.negatives import Found
from tasks.worker.tokens.tokenised import id_keys, text_keys
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.pair_arrays import HardNegatives


def negative_arrays(found: Found, rows: int, parts: ModelParts, config: Config) -> HardNegatives | None:
    """Return the hard negatives of the pairs of a run, None if there are none.

    Args:
        rows: how many there are in all; those replayed from earlier spans stand last and get no hard negatives.
    """
    if not found.items.num_rows:
        return None
    longest = config.train.max_tokens.item
    prompt = prompts_of(found.items, "item", parts.model.shape.prompts, parts.features.entity)
    return HardNegatives(
        of_row=np.pad(found.of_row, ((0, rows - len(found.of_row)), (0, 0)), constant_values=-1),
        tokens=tokenize(parts.tokenizer, found.items[TEXT].to_pylist(), longest, parts.model.pad, prompt),
        features=encode_features(parts.features, found.items, "item"),
        item_key=id_keys(found.items[ITEM_ID]),
        text_key=text_keys(found.items[TEXT]),
    )
