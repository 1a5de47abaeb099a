"""Vectors found in an earlier release."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.data.items import CONTENT, TEXT, VECTORS_KIND, part_name
from tasks.worker.vectors import reuse
from tasks.worker.vectors.reuse import EarlierVectors

ITEMS, WIDTH = 60, 5


@pytest.fixture
def vectors() -> np.ndarray:
    made = np.random.default_rng(3).normal(size=(ITEMS, WIDTH)).astype(np.float32)
    return made / np.linalg.norm(made, axis=1, keepdims=True)


@pytest.fixture
def earlier(tmp_path: Path, vectors: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> EarlierVectors:
    """Three shards of twenty items, read seven at a time."""
    folder = tmp_path / "made"
    folder.mkdir()
    for shard in range(3):
        rows = range(shard * 20, shard * 20 + 20)
        kind = pa.list_(pa.float32(), WIDTH)
        table = pa.table(
            {
                "item_id": [f"i{row:02d}" for row in rows],
                "text": [f"text {row}" for row in rows],
                "vector": pa.array([vectors[row] for row in rows], kind),
                "content_sha256": [f"content {row}" for row in rows],
            }
        )
        pq.write_table(table, folder / part_name(shard))
    store = DirectoryStore(tmp_path / "workspace")
    facts = {"model_version": "m", "catalogue": {"partitions": 4}}
    commit(store, "vectors/m/k", folder, VECTORS_KIND, facts)
    monkeypatch.setattr(reuse, "BATCH_VECTORS", 7)
    return EarlierVectors(store, "vectors/m/k", "m")


def test_the_nearest_of_all_shards_are_found(earlier: EarlierVectors, vectors: np.ndarray):
    queries = vectors[[3, 44]] * np.float32(0.9) + vectors[[50, 20]] * np.float32(0.1)
    best = np.argsort(-(queries @ vectors.T), axis=1)[:, :4]
    assert earlier.nearest(queries, 4) == {f"i{row:02d}" for row in best.reshape(-1)}
    assert len(earlier.nearest(queries, 100)) == ITEMS, "more than there are"
    assert earlier.nearest(queries[:0], 4) == set()


def test_vectors_are_found_by_id_and_content_or_text(earlier: EarlierVectors, vectors: np.ndarray):
    items = pa.table(
        {
            "item_id": ["i59", "i00", "new", "i21"],
            "text": ["text 59", "another", "text 3", "text 21"],
            "content_sha256": ["content 59", "content 0", "content 3", "changed"],
        }
    )
    which, found = earlier.of_items(items, CONTENT)
    assert which.tolist() == [True, True, False, False]
    assert (found == vectors[[59, 0]]).all()
    which, found = earlier.of_items(items, TEXT)
    assert which.tolist() == [True, False, False, True]
    assert (found == vectors[[59, 21]]).all()
    assert len(earlier.of_items(items.slice(2, 1), TEXT)[1]) == 0
