"""A release, opened to embed queries and items: by an export, or else the model itself; and its vectors."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from infra.store.base import Store
from infra.store.manifest import naming_release, open_folder
from tasks.contracts.references import ReleasedRef
from tasks.data.rows import TEXT
from tasks.worker.model.features import FILE, Side
from tasks.worker.model.released_code import MODEL_KIND, needs_trust
from tasks.worker.online.export_folder import FOLDER
from tasks.worker.online.exported import Entry, Exported
from tasks.worker.online.kinds import can_open
from tasks.worker.online.nearest import Vectors, fits

# Several lengths: a runtime prepares itself at the first texts of a shape, which should not be in a request.
WARMING = ("lamp", "a red lamp for the desk", "one more word " * 100)


class Encoder(Protocol):
    """Embeds texts with a model. `kind` is that of an export, or `torch`; `widths` are trained ones below `width`."""

    @property
    def kind(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def widths(self) -> tuple[int, ...]: ...
    def embed(self, entries: Sequence[Entry], side: Side) -> np.ndarray:
        """Return unit vectors, float32 (entries, width). Raises ConfigError: a feature has an unsuitable value."""
        ...


class ReleasedModel:
    """The model's own folder, by sentence-transformers and torch: for a release without exports."""

    kind = "torch"

    def __init__(self, folder: Path) -> None:
        """Open the folder. Raises ConfigError: its code is not this installation's own."""
        trust = needs_trust(folder)
        from sentence_transformers import SentenceTransformer

        self._model: Any = SentenceTransformer(str(folder), device="cpu", trust_remote_code=trust)
        self._crossed = (folder / FILE).is_file()
        config = json.loads((folder / "millrace.json").read_text(encoding="utf-8"))["config"]
        self._entity: str | None = config["features"]["entity"]
        self.widths = tuple(config["heads"]["contrastive"]["matryoshka"])
        self.width = int(self._model.get_embedding_dimension())

    def embed(self, entries: Sequence[Entry], side: Side) -> np.ndarray:
        from tasks.worker.search.encode_released import vectors_of

        records = [{TEXT: entry} if isinstance(entry, str) else dict(entry) for entry in entries]
        entities = [None if self._entity is None else record.get(self._entity) for record in records]
        given = records if self._crossed else [record[TEXT] for record in records]
        vectors = vectors_of(self._model, "query" if side == "query" else "document", given, entities)
        return vectors.astype(np.float32, copy=False).reshape(len(records), self.width)


@dataclass(frozen=True)
class Opened:
    """A release that is ready to answer. `vectors` is None if they are too many for this process's memory.

    `vectors_by` is another model than `model_version` if that was trained on queries alone.
    """

    release: int
    model_version: str
    vectors_by: str
    encoder: Encoder
    vectors: Vectors | None
    seconds: float  # taken by opening and warming


def open_release(store: Store, release: ReleasedRef, before: Opened | None = None, vectors: bool = True) -> Opened:
    """Open a release and embed a few texts with it.

    Args:
        before: an open release; if it has the same model, as before a refresh, that is used on.
        vectors: False if it will answer no search.

    Raises:
        MissingFolder, CorruptFolder: model or vectors are missing or damaged.
        ConfigError: the model's code is not this installation's own, or a package is missing.
    """
    began = time.monotonic()
    with naming_release(release.number):
        if before is not None and before.model_version == release.model_version:
            encoder = before.encoder
        else:
            folder, _ = open_folder(store, release.model_prefix, MODEL_KIND, release.model_sha256)
            encoder = _encoder(folder)
            for text in WARMING:
                encoder.embed([text], "query")
        found = Vectors(store, release) if vectors and fits(store, release) else None
    seconds = time.monotonic() - began
    return Opened(release.number, release.model_version, release.vectors_by, encoder, found, seconds)


def _encoder(folder: Path) -> Encoder:
    """Return the first of the model's exports, in the order of its `release.exports`, whose runtime is installed."""
    config = json.loads((folder / "millrace.json").read_text(encoding="utf-8"))["config"]
    there = [kind for kind in config["release"]["exports"] if (folder / FOLDER / kind).is_dir()]
    if not there:
        return ReleasedModel(folder)
    here = [kind for kind in there if can_open(kind)]
    return Exported(folder / FOLDER / (here or there)[0])  # the one that can't be opened says which package it needs
