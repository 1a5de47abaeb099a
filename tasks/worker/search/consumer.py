"""A released model as its consumers have it: the exported folder, opened with sentence-transformers alone."""

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from tasks.data.items import TEXT
from tasks.data.rows import QUERY
from tasks.worker.model.features import FILE, FeatureTable


class Consumer:
    """Makes unit vectors of queries and items."""

    def __init__(self, folder: Path) -> None:
        from sentence_transformers import SentenceTransformer

        # Its code, where it has any, is the pipeline's own file.
        self._model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
        described = folder / FILE
        table = FeatureTable.model_validate(json.loads(described.read_text())) if described.is_file() else None
        self.item_features = (*table.numeric, *table.categorical) if table else ()
        self.query_features = tuple(name for name in self.item_features if table and name in table.query)

    def items(self, items: pa.Table) -> np.ndarray:
        """Return float32 (items, width), from the column `text` and the features."""
        vectors = self._model.encode_document(
            cast(Any, _entries(items, TEXT, self.item_features)), normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(vectors, dtype=np.float32)

    def queries(self, rows: pa.Table) -> np.ndarray:
        """Return float32 (rows, width), from the column `query` and those features that queries have."""
        vectors = self._model.encode_query(
            cast(Any, _entries(rows, QUERY, self.query_features)), normalize_embeddings=True, show_progress_bar=False
        )
        return np.asarray(vectors, dtype=np.float32)


def _entries(table: pa.Table, text: str, features: tuple[str, ...]) -> list[Any]:
    """Return strings, or dicts with the features if the model has any that the table has too."""
    there = [name for name in features if name in table.column_names]
    if not there:
        return cast(list[Any], table[text].to_pylist())
    columns = {"text": table[text].to_pylist(), **{name: table[name].to_pylist() for name in there}}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
