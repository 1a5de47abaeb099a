"""Rows without their texts: token ids, and keys that are equal for equal queries, item texts or items.

The token cache has a span's training rows as such, in the workspace folder `tokens/<key>/`. The first process that
needs it makes it, under a lease; the key is a hash of all its inputs. If a file does not match its checksum, the folder
is moved to quarantine/ and made again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer, normalizers

from configs.schema.model import Prompts
from infra.store import lease
from infra.store.base import Store
from infra.store.manifest import (
    CorruptFolder,
    Manifest,
    MissingFolder,
    commit,
    open_folder,
    quarantine,
    read_manifest,
)
from tasks.contracts.references import HoldoutRule
from tasks.contracts.workspace import TOKENS, TOKENS_LEASE
from tasks.data.holdout import Piece, TrainingSpan, is_training
from tasks.data.pretrained import Described
from tasks.data.pretrained import read_settings as read_json
from tasks.data.rows import ITEM, ITEM_ID, QUERY
from tasks.worker.model.features import Side
from tasks.worker.model.tokens import load_tokenizer, prompts_of, tokenize
from tasks.worker.process.cores import Cores
from tasks.worker.process.machine import beating
from tasks.worker.training.row_keys import KEYS, id_keys, text_keys

TokenizerSettings = Mapping[str, Mapping[str, Any]]  # content of each file by its name

SHAPE_FILE = "shape.json"  # in a checkpoint; its prompts come before all texts
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


def tokenizer_of(described: Described) -> Tokenizer:
    """Return the tokenizer of a pretrained folder; it lower-cases texts if the folder's model reads them so."""
    tokenizer = load_tokenizer(described.encoder)
    if described.lower_case and not lower_cases(tokenizer):
        rest, first = tokenizer.normalizer, normalizers.Lowercase()
        tokenizer.normalizer = first if rest is None else normalizers.Sequence([first, rest])
    return tokenizer


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


KIND = "tokens"
ROWS, QUERY_IDS, ITEM_IDS = "rows.bin", "query.int32", "item.int32"  # little-endian, without a header
SPLIT = "training.bits"
POLL_SECONDS = 1.0
_FORMAT = 2  # part of the key: raise it if the same rows give different files


def open_tokens(
    store: Store,
    span: TrainingSpan,
    recipe: Recipe,
    beat: Callable[[], object] = lambda: None,
    cores: Cores | None = None,
) -> tuple[Path, Manifest]:
    """Return the local folder of a span's tokens and its manifest; make it if the workspace lacks it.

    ROWS holds records of ROW, with an extra one at the end, whose begins are the ends of the last row; the ids are
    int32. SPLIT holds a bit for each row of the span, set for the training rows: `span` knows them then. The manifest's
    facts have the number of rows and the inputs of the key.

    Args:
        store: the folder is written to it; the rows are read from the span's.
        beat: called as the work goes on, here or in the process that makes the folder.
        cores: tokenise; None: this process does.

    Raises:
        MissingFolder, CorruptFolder: the rows of the span or their `sides` are missing or damaged.
        StoreError: the lease was lost to another process.
    """
    made_of = _made_of(span, recipe)
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
    prefix = TOKENS.key(key=key)

    def never() -> bool:  # polled while another process, whose lease is alive, makes the folder
        beat()
        return False

    try:
        found = open_folder(store, prefix, KIND)
        _say(f"{prefix}: the tokens of {found[1].facts['rows']} rows of span {span.ref.span.name} are there")
    except (MissingFolder, CorruptFolder):
        lease_key = TOKENS_LEASE.key(key=key)
        with lease.wait_for(store, lease_key, until=never, say=_say, poll_seconds=POLL_SECONDS) as held:
            assert held is not None  # as `until` is never true
            _make_if_needed(store, prefix, span, recipe, made_of, beat, cores)
            held.check()
        found = open_folder(store, prefix, KIND)
    span.found = np.unpackbits(np.fromfile(found[0] / SPLIT, np.uint8), count=span.ref.rows).astype(bool)
    return found


def _made_of(span: TrainingSpan, recipe: Recipe) -> dict[str, Any]:
    """Return the inputs of the key, as JSON. Rows are named by their checksum, so equal rows share a folder."""
    store, ref, prompts = span.store, span.ref, recipe.prompts
    by_entity = {"entity": recipe.entity, "by_entity": prompts.model_dump(mode="json")["by_entity"]}
    return {
        "format": _FORMAT,
        "rows": read_manifest(store, ref.prefix).sha256,
        "sides": read_manifest(store, ref.sides).sha256 if ref.sides is not None else None,
        "holdout": span.rule.model_dump(mode="json", exclude={"measured"}),
        "tokenizer": recipe.tokenizer_sha256,
        "max_tokens": [recipe.query_tokens, recipe.item_tokens],
        "prompts": [prompts.query, prompts.item],
        **(by_entity if recipe.columns else {}),
    }


def _make_if_needed(
    store: Store,
    prefix: str,
    span: TrainingSpan,
    recipe: Recipe,
    made_of: dict[str, Any],
    beat: Callable[[], object],
    cores: Cores | None,
) -> None:
    """Make the folder unless another process just did; the caller must hold the lease."""
    try:
        open_folder(store, prefix, KIND)
        return
    except MissingFolder:
        pass
    except CorruptFolder as error:
        _say(f"{error}; moved to {quarantine(store, prefix)}, and made again")
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="millrace-") as name:
        split = [np.zeros(0, dtype=bool)]

        def tokenised() -> Iterator[TokenisedRows]:
            work = functools.partial(_split_and_tokenise, rule=span.rule, recipe=recipe)
            pieces = beating(span.pieces(), beat)
            alone = ((piece, work(piece)) for piece in pieces)
            for _, (training, some) in cores.map(work, pieces, span.ref.rows) if cores is not None else alone:
                split.append(training)
                yield some

        rows = _write(Path(name), tokenised())
        np.packbits(np.concatenate(split)).tofile(Path(name) / SPLIT)
        facts = {"rows": rows, "of": span.ref.prefix, "made_of": made_of}
        commit(store, prefix, Path(name), KIND, facts)
    seconds = time.monotonic() - began
    _say(f"{prefix}: tokenised {rows} rows of span {span.ref.span.name} in {seconds:.1f} s")


def _split_and_tokenise(piece: Piece, rule: HoldoutRule, recipe: Recipe) -> tuple[np.ndarray, TokenisedRows]:
    """Return the mask of the training rows, bool (rows,), and their tokens."""
    training = is_training(piece.rows, rule, piece.left_out)
    return training, tokenise_rows(piece.rows.filter(pa.array(training)), recipe)


def write_tokens(folder: Path, tables: Iterable[pa.Table], recipe: Recipe) -> int:
    """Write the files of the cache into `folder`, table by table, but for SPLIT; return the number of rows."""
    return _write(folder, (tokenise_rows(table, recipe) for table in tables))


def _write(folder: Path, tokenised: Iterable[TokenisedRows]) -> int:
    count, ends = 0, np.zeros(2, dtype=np.int64)
    with (
        (folder / ROWS).open("wb") as rows,
        (folder / QUERY_IDS).open("wb") as query_ids,
        (folder / ITEM_IDS).open("wb") as item_ids,
    ):
        for some in tokenised:
            for begin, end in zip(BEGINS, ends, strict=True):
                some.rows[begin] += end
            _append(rows, some.rows)
            _append(query_ids, some.query_ids)
            _append(item_ids, some.item_ids)
            ends += some.ends
            count += len(some.rows)
        last = np.zeros(1, dtype=ROW)
        for begin, end in zip(BEGINS, ends, strict=True):
            last[begin] = end
        _append(rows, last)
    return count


def _append(file: IO[bytes], values: np.ndarray) -> None:
    file.write(values.tobytes())


def _say(line: str) -> None:
    print(line, flush=True)
