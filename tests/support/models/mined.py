"""A released span and the span after it, for hard negatives."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from infra.store.directory import DirectoryStore
from infra.store.manifest import read_manifest
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import MinedRelease, RowsRef
from tests.support.workspace.jobs import (
    CLASSIFIER,
    FEATURES,
    infer_vectors,
    make_catalogue,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
    write_rows,
)

SETTINGS = (
    *FEATURES,
    CLASSIFIER,
    "heads.contrastive.positives_only=true",
    "heads.contrastive.negatives={per_query: 3, max_share: 0.9}",
)
CONFIG = tiny_config(*SETTINGS)


class Made(NamedTuple):
    """A released span and the span after it, which has other items too."""

    store: DirectoryStore
    release: MinedRelease
    before: RowsRef
    rows: RowsRef

    @property
    def inputs(self) -> TrainInputs:
        parent = self.release.model.checkpoint
        return TrainInputs(rows=(self.rows,), history=(self.before,), parent=parent, mined=self.release)


def make_mined(folder: Path) -> Made:
    """The same arguments give the same workspace."""
    store, before = make_workspace(folder, rows=120, distinct=40)
    model = model_of(train_model(store, CONFIG, before))
    vectors = infer_vectors(store, CONFIG, before, model).prefix
    catalogue = make_catalogue(store, CONFIG, before)
    sha256 = read_manifest(store, vectors).sha256
    release = MinedRelease(number=1, model=model, vectors=vectors, vectors_sha256=sha256, catalogue=catalogue)
    return Made(store, release, before, write_rows(store, "2026-02", 150, folder, distinct=50))
