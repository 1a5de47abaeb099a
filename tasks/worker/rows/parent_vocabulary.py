"""The vocabularies of the parent checkpoint: its categories and its tokenizer. Weights are not read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute
from tokenizers import Tokenizer

from infra.store.base import Store
from infra.store.manifest import CorruptFolder, MissingFolder, open_file, read_manifest
from tasks.contracts.references import CheckpointRef
from tasks.data.rows import ITEM, QUERY
from tasks.foundation.errors import StoreError
from tasks.worker.model import features, tokens
from tasks.worker.model.features import FeatureTable
from tasks.worker.rows.columns import LANGUAGE_ROWS, spread

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


@dataclass(frozen=True)
class Known:
    """`categories` by feature; `unknown` is the tokenizer's id for unknown text, None if it has none."""

    categories: Mapping[str, Sequence[str]]
    tokenizer: Tokenizer
    unknown: int | None

    def unseen(self, rows: pa.Table) -> dict[str, int]:
        """Return by feature the number of rows with a category never seen in training."""
        found = {}
        for name, values in self.categories.items():
            if name in rows.column_names:
                column = rows[name].cast(pa.string()).drop_null()
                known = pc.is_in(column, value_set=pa.array(values, pa.string()))
                found[name] = len(column) - int(pc.sum(known).as_py() or 0)
        return found

    def unknown_tokens(self, rows: pa.Table) -> float | None:
        """Return the share of unknown tokens in a sample of texts; None if the tokenizer has no unknown token."""
        if self.unknown is None:
            return None
        few = rows.take(pa.array(spread(len(rows), LANGUAGE_ROWS)))
        texts = [text for column in (QUERY, ITEM) for text in few[column].drop_null().to_pylist()]
        encoded = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        total = sum(len(each.ids) for each in encoded)
        return sum(each.ids.count(self.unknown) for each in encoded) / total if total else 0.0


def read_known(store: Store, parent: CheckpointRef) -> Known:
    """Return a checkpoint's vocabularies. Raises StoreError: its tokenizer or feature table is gone or damaged."""
    try:
        manifest = read_manifest(store, parent.prefix)
        names = (features.FILE, tokens.FILE)
        features_file, tokens_file = (open_file(store, parent.prefix, manifest, name) for name in names)
    except (MissingFolder, CorruptFolder) as error:
        raise StoreError(
            f"the parent checkpoint can't be read: {error}, or start a new lineage with --set lineage=NAME"
        ) from error
    table = FeatureTable.model_validate_json(features_file.read_bytes())
    described = tokens_file.read_text(encoding="utf-8")
    tokenizer = Tokenizer.from_str(described)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    name = json.loads(described)["model"].get("unk_token")
    return Known(table.categorical, tokenizer, tokenizer.token_to_id(name) if name else None)
