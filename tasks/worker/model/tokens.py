"""Turn texts into token ids, with a tokenizer trained on the first run's texts or taken from a pretrained folder.

Before each text is a prompt: one for all rows, or one per entity type or locale. Only the `tokenizers` library and one
`tokenizer.json`, which every checkpoint has, are needed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from configs.schema.model import Prompts
from tasks.foundation.errors import ConfigError
from tasks.worker.model.features import Side


def prompts_of(rows: pa.Table, side: Side, prompts: Prompts, entity: str | None) -> str | Sequence[str]:
    """Return one prompt for all rows, or a list with one per row.

    Args:
        entity: the column that selects a row's prompt; rows whose value is missing or has no prompt get the common one.
    """
    common: str = getattr(prompts, side)
    own = {name: found for name, each in prompts.by_entity.items() if (found := getattr(each, side)) is not None}
    if entity is None or not own or entity not in rows.column_names:
        return common
    return [own.get(value, common) for value in rows[entity].cast(pa.string()).to_pylist()]


FILE = "tokenizer.json"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")  # [PAD] is 0, BertConfig's default


@dataclass(frozen=True)
class TokenLists:
    """Many token lists without padding: `ids` int32 (total,), `offsets` int64 (texts + 1,), `pad` the padding id."""

    ids: np.ndarray
    offsets: np.ndarray
    pad: int

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, int64 (texts,)."""
        return np.diff(self.offsets)

    def lengths_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the number of tokens of the texts at `rows`, int64 (len(rows),)."""
        return self.offsets[rows + 1] - self.offsets[rows]

    def of(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of the texts at `rows` (-1: none), int32 (total,), and offsets int64 (len(rows) + 1,)."""
        taken = self.take(rows, rows >= 0)
        return taken.ids, taken.offsets

    def take(self, rows: np.ndarray, wanted: np.ndarray) -> TokenLists:
        """Return the texts at `rows`, in memory, without tokens unless `wanted`, bool (len(rows),)."""
        lengths = np.where(wanted, self.lengths_of(rows), 0)
        offsets = np.append(0, np.cumsum(lengths))
        places = np.repeat(self.offsets[rows] - offsets[:-1], lengths) + np.arange(offsets[-1])
        return TokenLists(self.ids[places], offsets, self.pad)


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """Train a lower-casing byte-pair tokenizer with BERT's special tokens; the same texts give the same tokenizer.

    Not WordPiece: the library's trainer numbers the `##` pieces in the order of a randomly seeded hash table, which
    differs between processes.
    """
    tokenizer = Tokenizer(BPE(unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    trainer = BpeTrainer(vocab_size=vocab_size, special_tokens=list(SPECIAL_TOKENS), show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    return tokenizer


def load_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a checkpoint or pretrained folder. Raises ConfigError if it is missing."""
    path = folder / FILE
    if not path.is_file():
        raise ConfigError(f"{folder} has no {FILE}; save the tokenizer in the fast format")
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.no_truncation()  # some files carry their training's limits
    return tokenizer


def tokenize(
    tokenizer: Tokenizer, texts: Sequence[str], max_tokens: int, pad: int, prompt: str | Sequence[str] = ""
) -> TokenLists:
    """Return token ids, truncated to `max_tokens` including special tokens.

    Not for several threads at once: meanwhile the tokenizer has a limit, and no normalizer.

    Args:
        prompt: put before each text; a list has one prompt per text.
    """
    tokenizer.enable_truncation(max_length=max_tokens)
    prompts = itertools.repeat(prompt, len(texts)) if isinstance(prompt, str) else prompt
    lists = _encode(tokenizer, [each + text for each, text in zip(prompts, texts, strict=True)])
    tokenizer.no_truncation()  # otherwise the limit would be saved with the next checkpoint
    offsets = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum([len(ids) for ids in lists], out=offsets[1:])
    return TokenLists(np.fromiter(itertools.chain.from_iterable(lists), np.int32), offsets, pad)


def _encode(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text.

    BERT's normalizer takes 40% of the library's time. All it does to printable ASCII is to lower its case: such texts
    are lowered here, apart from those with an added token (`[SEP]`), which the library finds before it normalizes.
    """
    normalizer = tokenizer.normalizer
    if not (isinstance(normalizer, BertNormalizer) and normalizer.lowercase):
        return [encoding.ids for encoding in tokenizer.encode_batch_fast(texts)]
    added = [normalizer.normalize_str(token.content) for token in tokenizer.get_added_tokens_decoder().values()]
    has_added = re.compile("|".join(map(re.escape, added)) or "(?!)").search
    lowered = [text.lower() if text.isascii() and text.isprintable() else None for text in texts]
    lowered = [None if text is None or has_added(text) else text for text in lowered]
    others = iter(tokenizer.encode_batch_fast([text for text, low in zip(texts, lowered, strict=True) if low is None]))
    tokenizer.normalizer = None  # type: ignore[assignment]
    try:
        plain = iter(tokenizer.encode_batch_fast([low for low in lowered if low is not None]))
    finally:
        tokenizer.normalizer = normalizer
    return [next(others if low is None else plain).ids for low in lowered]
