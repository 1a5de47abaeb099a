"""Rows without their texts: token ids, and keys that are equal for equal queries, item texts or items."""

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

TokenizerSettings = Mapping[str, Mapping[str, Any]]  # content of each file by its name

CONFIG = "tokenizer_config.json"
FILES = (CONFIG, "special_tokens_map.json", "added_tokens.json")
_TEMPLATE, _TEMPLATE_FILE = "chat_template", "chat_template.jinja"  # newer folders have it in a file of its own
# Default names of special tokens, if no file has them: BERT's family, then RoBERTa's.
_SPECIAL = {
    "pad_token": ("[PAD]", "<pad>"),
    "unk_token": ("[UNK]", "<unk>"),
    "cls_token": ("[CLS]", "<s>"),
    "sep_token": ("[SEP]", "</s>"),
    "mask_token": ("[MASK]", "<mask>"),
}


def read_settings(folder: Path) -> TokenizerSettings:
    """Return the tokenizer settings in a folder; empty without such files.

    Raises:
        ConfigError: a file is no JSON object.
    """
    found = {name: read_json(folder / name) for name in FILES if (folder / name).is_file()}
    if (folder / _TEMPLATE_FILE).is_file() and CONFIG in found:
        found[CONFIG] = {**found[CONFIG], _TEMPLATE: (folder / _TEMPLATE_FILE).read_text(encoding="utf-8")}
    return found


def own_settings(tokenizer: Tokenizer) -> TokenizerSettings:
    """Return settings for a tokenizer without any: its class, and the special tokens found by name."""
    vocabulary = tokenizer.get_vocab()
    special = {role: name for role, names in _SPECIAL.items() for name in names if name in vocabulary}
    return {CONFIG: {"tokenizer_class": "PreTrainedTokenizerFast", **special}}


def lower_cases(tokenizer: Tokenizer) -> bool:
    """Return True if the tokenizer has an explicit step that lower-cases texts."""
    steps = tokenizer.normalizer
    steps = list(cast(Any, steps)) if isinstance(steps, normalizers.Sequence) else [steps]
    return any(isinstance(step, normalizers.Lowercase) for step in steps)


def write_settings(settings: TokenizerSettings, folder: Path, longest: int | None = None) -> None:
    """Write the files into a folder.

    Args:
        longest: maximum tokens of a text for consumers; None: leave the settings' own.
    """
    if longest is not None:
        settings = {**settings, CONFIG: {**settings.get(CONFIG, {}), "model_max_length": longest}}
    for name, content in settings.items():
        (folder / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


SIDES: tuple[Side, ...] = ("query", "item")

BEGINS = ("query_begin", "item_begin")  # first token of a row among all rows' tokens
KEYS = ("query_key", "text_key", "item_key")
# One record per row, so that few pages of a file are read for it.
ROW = np.dtype([(name, "<i8") for name in (*BEGINS, *KEYS, "tokens")])


class Recipe(NamedTuple):
    """Settings for tokenising: the tokenizer, the maximum tokens of a query and of an item, special tokens included.

    The prompts are put before queries and items; the column `entity` selects a row's prompt.
    """

    tokenizer: Tokenizer
    query_tokens: int
    item_tokens: int
    prompts: Prompts = Prompts()
    entity: str | None = None

    @property
    def tokenizer_sha256(self) -> str:
        """Hex SHA-256 of the saved tokenizer."""
        return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()

    @property
    def columns(self) -> list[str]:
        """The columns besides the texts that tokens depend on."""
        return [self.entity] if self.entity is not None and self.prompts.by_entity else []


class TokenisedRows(NamedTuple):
    """Some rows: `rows` ROW (rows,), `query_ids` and `item_ids` int32 (total tokens,), `ends` the number of each."""

    rows: np.ndarray
    query_ids: np.ndarray
    item_ids: np.ndarray

    @property
    def ends(self) -> tuple[int, int]:
        return len(self.query_ids), len(self.item_ids)


def tokenise_rows(table: pa.Table, recipe: Recipe) -> TokenisedRows:
    """Tokenise validated rows, and hash their keys, int64, not negative."""
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
    return TokenisedRows(rows, query.ids, item.ids)


def text_keys(texts: pa.ChunkedArray) -> np.ndarray:
    """Return a key of each text, int64 (texts,), not negative; equal if the normalised texts are equal."""
    return _hashes(map(normal_text, texts.to_pylist()))


def id_keys(item_ids: pa.ChunkedArray) -> np.ndarray:
    """Return a key of each item id, int64 (items,), not negative."""
    return _hashes(item_ids.to_pylist())


def _hashes(texts: Iterable[str]) -> np.ndarray:
    """Return 63 hash bits of each text, int64; a collision among ten million texts has odds of 1 to 200,000."""
    digests = b"".join(hashlib.blake2b(text.encode(), digest_size=8).digest() for text in texts)
    return (np.frombuffer(digests, dtype="<u8") >> np.uint64(1)).astype(np.int64)
