"""An export of a released model, opened with its own runtime: `exports/onnx/` in the model's folder.

The folder holds the graph, from tokens and features to unit vectors; the tokenizer; and `export.json`, with all that
comes before the graph. The proof of a release and the online server open it by this same code.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pydantic import ValidationError

from configs.schema.stages import ExportKind
from infra.store.manifest import CorruptFolder
from tasks.data.rows import TEXT
from tasks.foundation.errors import ConfigError
from tasks.worker.model.features import FeatureTable, Side, encode_features
from tasks.worker.model.tokens import TokenLists, load_tokenizer, prompts_of, tokenize
from tasks.worker.online.export_folder import ABOUT, CATEGORICAL, IDS, MASK, NUMERIC, ExportAbout
from tasks.worker.online.kinds import KINDS, file_of

BATCH_TEXTS = 32  # padded to the longest of them

Entry = str | Mapping[str, Any]  # a text, or `text` with features: {"text": "lamp", "price": 9.5, "locale": "de"}


class Exported:
    """Embeds texts with an export, in this process. Not for several threads at once: the tokenizer keeps a limit."""

    def __init__(self, folder: Path, threads: int | None = None) -> None:
        """Open the folder of one export.

        Args:
            threads: that compute; None: one for each core of this process.

        Raises:
            CorruptFolder: a file is missing or is none of ours.
            ConfigError: its runtime is not installed.
        """
        self.about = _about(folder)
        runtime, install = KINDS[self.kind].runtime, KINDS[self.kind].install_runtime
        try:
            self._compute = file_of(self.kind).opened(folder, threads or len(os.sched_getaffinity(0)))
        except ImportError as error:
            raise ConfigError(f"{folder} needs {runtime}, which is not installed; {install}") from error
        self._tokenizer = load_tokenizer(folder)

    @property
    def kind(self) -> ExportKind:
        return self.about.kind

    @property
    def width(self) -> int:
        return self.about.width

    @property
    def widths(self) -> tuple[int, ...]:
        return self.about.widths

    def embed(self, entries: Sequence[Entry], side: Side) -> np.ndarray:
        """Return unit vectors, float32 (entries, width); zeros for a text without tokens.

        Features of items that queries lack are ignored for queries, and unknown keys for both.

        Raises:
            ConfigError: a feature has a value of the wrong kind; names it.
        """
        about = self.about
        rows = table_of(entries, about.features)
        prompts = prompts_of(rows, side, about.prompts, about.features.entity)
        tokens = tokenize(self._tokenizer, rows[TEXT].to_pylist(), about.max_tokens, about.pad, prompts)
        features = encode_features(about.features, rows, side)
        out = np.zeros((len(tokens), about.width), dtype=np.float32)
        order = np.argsort(tokens.lengths, kind="stable")
        order = order[tokens.lengths[order] > 0]
        for start in range(0, len(order), BATCH_TEXTS):
            some = order[start : start + BATCH_TEXTS]
            ids, mask = padded(tokens, some)
            given = {IDS: ids, MASK: mask, NUMERIC: features.numeric[some], CATEGORICAL: features.categorical[some]}
            out[some] = self._compute(given)
        return out


def padded(tokens: TokenLists, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ids and mask of the texts at `rows`, int64 (rows, longest), padded at the right."""
    lengths = tokens.lengths_of(rows)
    mask = np.arange(lengths.max()) < lengths[:, None]
    ids = np.full(mask.shape, tokens.pad, dtype=np.int64)
    ids[mask] = tokens.of(rows)[0]
    return ids, mask.astype(np.int64)


def table_of(entries: Sequence[Entry], features: FeatureTable) -> pa.Table:
    """Return entries as rows with the columns `text`, each feature, and the entity. Raises ConfigError as `embed`."""
    records = [{"text": entry} if isinstance(entry, str) else entry for entry in entries]
    columns = {TEXT: pa.array([record["text"] for record in records], pa.string())}
    for name in features.columns:
        values = [record.get(name) for record in records]
        if name in features.numeric:
            columns[name] = pa.array([_number(name, value) for value in values], pa.float64())
        else:
            columns[name] = pa.array([_name(name, value) for value in values], pa.string())
    return pa.table(columns)


def _number(name: str, value: Any) -> float | None:
    if value is None or isinstance(value, int | float):
        return None if value is None else float(value)
    raise ConfigError(f"the feature {name} is a number, and not {value!r:.60}; leave it out if it is not known")


def _name(name: str, value: Any) -> str | None:
    """Return a category as Arrow names it in training: yes is `true`, and 5.0 is `5`."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return pa.scalar(value).cast(pa.string()).as_py()
    raise ConfigError(f"the feature {name} is a single value, and not {value!r:.60}; leave it out if it is not known")


def _about(folder: Path) -> ExportAbout:
    try:
        return ExportAbout.model_validate_json((folder / ABOUT).read_bytes())
    except (OSError, ValidationError) as error:
        raise CorruptFolder(f"{folder / ABOUT} is missing or is not of this version of Millrace: {error}") from error
