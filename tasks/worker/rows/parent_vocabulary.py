"""The vocabularies of the parent checkpoint: its categories and its tokenizer. Weights are not read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute
from tokenizers import Tokenizer

from infra.store.base import Store
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
    """Return a checkpoint's vocabularies. Raises StoreError: its tokenizer or feature table can't be read."""
    try:
        table = FeatureTable.model_validate_json(store.read(f"{parent.prefix}/{features.FILE}"))
        described = store.read(f"{parent.prefix}/{tokens.FILE}").decode()
        tokenizer = Tokenizer.from_str(described)
    except (FileNotFoundError, ValueError) as error:
        raise StoreError(f"the parent checkpoint {store.uri}/{parent.prefix} can't be read: {error}") from error
    tokenizer.no_padding()
    tokenizer.no_truncation()
    name = json.loads(described)["model"].get("unk_token")
    return Known(table.categorical, tokenizer, tokenizer.token_to_id(name) if name else None)
