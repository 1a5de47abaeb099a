"""Vectors found in an earlier release."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.data.items import CONTENT, TEXT, VECTORS_KIND, part_name
from tasks.worker.catalogue import reuse
from tasks.worker.catalogue.reuse import EarlierVectors
from tasks.worker.process.job import Share

ITEMS, WIDTH = 60, 5
ALONE = Share(0, 1)


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
    facts = {"model_version": "m", "catalogue": {"partitions": 4}, "max_tokens": 16}
    commit(store, "vectors/m/k", folder, VECTORS_KIND, facts)
    monkeypatch.setattr(reuse, "BATCH_VECTORS", 7)
    return EarlierVectors(store, "vectors/m/k", "m")


def test_vectors_are_found_by_id_and_content_or_text(earlier: EarlierVectors, vectors: np.ndarray):
    items = pa.table(
        {
            "item_id": ["i59", "i00", "new", "i21"],
            "text": ["text 59", "another", "text 3", "text 21"],
            "content_sha256": ["content 59", "content 0", "content 3", "changed"],
        }
    )
    which, found = earlier.of_items(items, CONTENT, WIDTH, ALONE)
    assert which.tolist() == [True, True, False, False]
    assert (found == np.stack([vectors[59], vectors[0], np.zeros(WIDTH), np.zeros(WIDTH)])).all()
    assert earlier.of_items(items, TEXT, WIDTH, ALONE)[0].tolist() == [True, False, False, True]
    halves = [earlier.of_items(items, TEXT, WIDTH, Share(index, 2)) for index in range(2)]
    assert (halves[0][0] ^ halves[1][0]).tolist() == [True, False, False, True], "each found by one worker"
    assert (halves[0][1] + halves[1][1] == earlier.of_items(items, TEXT, WIDTH, ALONE)[1]).all()
