"""Rows without their texts: token ids, and keys that are equal where rows have one query, one item text or one item."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, normalizers

from configs.schema.model import Prompts
from tasks.data.pretrained import read_settings as read_json
from tasks.data.rows import ITEM, ITEM_ID, QUERY, normal_text
from tasks.worker.model.features import Side
from tasks.worker.model.prompts import prompts_of
from tasks.worker.model.tokens import tokenize

TokenizerSettings = Mapping[str, Mapping[str, Any]]  # the content of each file by its name

CONFIG = "tokenizer_config.json"
FILES = (CONFIG, "special_tokens_map.json", "added_tokens.json")
_TEMPLATE, _TEMPLATE_FILE = "chat_template", "chat_template.jinja"  # newer folders have a file of its own
# The names of special tokens, where no file says them: BERT's family, then RoBERTa's.
_SPECIAL = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


def read_settings(folder: Path) -> TokenizerSettings:
    """Return the settings in a folder; none where it has no such file.

    Raises:
        ConfigError: a file is no JSON object.
    """
    found = {name: read_json(folder / name) for name in FILES if (folder / name).is_file()}
    if (folder / _TEMPLATE_FILE).is_file() and CONFIG in found:
        found[CONFIG] = {**found[CONFIG], _TEMPLATE: (folder / _TEMPLATE_FILE).read_text()}
    return found


def own_settings(tokenizer: Tokenizer) -> TokenizerSettings:
    """Return the settings of a tokenizer that comes without any: its file is read whole, its special tokens by name."""
    vocabulary = tokenizer.get_vocab()
    special = {role: name for role, names in _SPECIAL.items() for name in names if name in vocabulary}
    return {CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast", **special}}


def lower_cases(tokenizer: Tokenizer) -> bool:
    """Return whether texts are lower-cased apart from what the model's own normalizer does."""
    steps = tokenizer.normalizer
    steps = list(cast(Any, steps)) if isinstance(steps, normalizers.Sequence) else [steps]
    return any(isinstance(step, normalizers.Lowercase) for step in steps)


def write_settings(settings: TokenizerSettings, folder: Path, longest: int | None = None) -> None:
    """Write the files into a folder.

    Args:
        longest: tokens after which a consumer cuts a text; None: as the settings say.
    """
    if longest is not None:
        settings = {**settings, CONFIG: {**settings.get(CONFIG, {}), "model_max_length": longest}}
    for name, content in settings.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


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
