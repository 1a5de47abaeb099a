"""The token cache: a span's training rows as tokens and keys, in the workspace folder `tokens/<key>/`.

The first process that needs it makes it, under a lease; the key is a hash of all its inputs. If a file does not match
its checksum, the folder is moved to quarantine/ and made again.
"""

import hashlib
import json
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa

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
from tasks.contracts.checkpoints import HoldoutRule
from tasks.contracts.references import RowsRef
from tasks.contracts.workspace import TOKENS, TOKENS_LEASE
from tasks.data.holdout import read_sides
from tasks.worker.training.tokenised import BEGINS, ROW, Recipe, tokenise_rows

KIND = "tokens"
ROWS, QUERY_IDS, ITEM_IDS = "rows.bin", "query.int32", "item.int32"  # little-endian, without a header
POLL_SECONDS = 1.0
_FORMAT = 1  # part of the key: raise it if the same rows give different files


def open_tokens(
    store: Store, ref: RowsRef, rule: HoldoutRule, recipe: Recipe, shared: Store | None = None
) -> tuple[Path, Manifest]:
    """Return the local folder of a span's tokens and its manifest; make it if the workspace lacks it.

    ROWS holds records of ROW, with an extra one at the end, whose begins are the ends of the last row; the ids are
    int32. The manifest's facts have the number of rows and the inputs of the key.

    Args:
        shared: the same workspace, read once per machine; if given, the rows are read from it.

    Raises:
        MissingFolder, CorruptFolder: the rows of the span or their `sides` are missing or damaged.
        StoreError: the lease was lost to another process.
    """
    rows = shared or store
    made_of = _made_of(rows, ref, rule, recipe)
    key = hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()[:16]
    prefix = TOKENS.key(key=key)
    try:
        found = open_folder(store, prefix, KIND)
    except (MissingFolder, CorruptFolder):
        with lease.wait_for(store, TOKENS_LEASE.key(key=key), say=_say, poll_seconds=POLL_SECONDS) as held:
            assert held is not None  # None only with `until`
            _make_if_needed(store, prefix, read_sides(rows, [ref], rule, recipe.columns), recipe, made_of, ref)
            held.check()
        return open_folder(store, prefix, KIND)
    _say(f"{prefix}: the tokens of {found[1].facts['rows']} rows of span {ref.span.name} are there")
    return found


def _made_of(store: Store, ref: RowsRef, rule: HoldoutRule, recipe: Recipe) -> dict[str, Any]:
    """Return the inputs of the key, as JSON. Rows are named by their checksum, so equal rows share a folder."""
    prompts = recipe.prompts
    by_entity = {"entity": recipe.entity, "by_entity": prompts.model_dump(mode="json")["by_entity"]}
    return {
        "format": _FORMAT,
        "rows": read_manifest(store, ref.prefix).sha256,
        "sides": read_manifest(store, ref.sides).sha256 if ref.sides is not None else None,
        "holdout": rule.model_dump(mode="json", exclude={"measured"}),
        "tokenizer": recipe.tokenizer_sha256,
        "max_tokens": [recipe.query_tokens, recipe.item_tokens],
        "prompts": [prompts.query, prompts.item],
        **(by_entity if recipe.columns else {}),
    }


def _make_if_needed(
    store: Store, prefix: str, sides: Iterable[Any], recipe: Recipe, made_of: dict[str, Any], ref: RowsRef
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
        rows = write_tokens(Path(name), (side.training for side in sides), recipe)
        facts = {"rows": rows, "of": ref.prefix, "made_of": made_of}
        commit(store, prefix, Path(name), KIND, facts)
    seconds = time.monotonic() - began
    _say(f"{prefix}: tokenised {rows} rows of span {ref.span.name} in {seconds:.1f} s")


def write_tokens(folder: Path, tables: Iterable[pa.Table], recipe: Recipe) -> int:
    """Write the files of the cache into `folder`, table by table; return the number of rows."""
    count, ends = 0, np.zeros(2, dtype=np.int64)
    with (
        (folder / ROWS).open("wb") as rows,
        (folder / QUERY_IDS).open("wb") as query_ids,
        (folder / ITEM_IDS).open("wb") as item_ids,
    ):
        for table in tables:
            some = tokenise_rows(table, recipe)
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
