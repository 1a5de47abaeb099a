"""Exact search over shards, compared with one matrix product."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from infra.store.directory import DirectoryStore
from infra.store.manifest import CorruptFolder, commit
from tasks.worker.model import ranks
from tasks.worker.search.index import ABSENT, Index

PREFIX, MODEL = "vectors/m-1/c", "m-1"
SHARDS = (37, 0, 5, 120)
WIDTH = 8


@pytest.fixture(scope="module")
def matrix() -> np.ndarray:
    drawn = np.random.default_rng(7).normal(size=(sum(SHARDS), WIDTH)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


def write(folder: Path, matrix: np.ndarray, half: bool = False) -> DirectoryStore:
    """A store with these vectors in shards of several row groups; item `i<row>` has the text `text <row>`."""
    store, source = DirectoryStore(folder / "workspace"), folder / "shards"
    source.mkdir()
    kind = pa.float16() if half else pa.float32()
    start = 0
    for number, rows in enumerate(SHARDS):
        part = matrix[start : start + rows].astype(kind.to_pandas_dtype())
        table = pa.table(
            {
                "item_id": pa.array([f"i{row}" for row in range(start, start + rows)], pa.string()),
                "text": pa.array([f"text {row}" for row in range(start, start + rows)], pa.string()),
                "vector": pa.FixedSizeListArray.from_arrays(pa.array(part.reshape(-1), kind), WIDTH),
                "content_sha256": pa.array([f"hash {row}" for row in range(start, start + rows)], pa.string()),
            }
        )
        pq.write_table(table, source / f"part-{number:05d}.parquet", row_group_size=16)
        start += rows
    facts = {"model_version": MODEL, "width": WIDTH, "type": "fp16" if half else "fp32", "max_tokens": 16}
    commit(store, PREFIX, source, "vectors", facts)
    return store


@pytest.mark.parametrize("memory_bytes", [2**30, 0], ids=["in memory", "from the shards"])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("k", [1, 10, 1000])
@pytest.mark.parametrize("host", ["cpu", "meta"], ids=["on the host", "as on another device"])
def test_the_nearest_are_those_of_one_product(
    tmp_path: Path, matrix: np.ndarray, memory_bytes: int, half: bool, k: int, host: str, monkeypatch
) -> None:
    monkeypatch.setattr(ranks, "HOST", torch.device(host))
    index = Index(write(tmp_path, matrix, half), PREFIX, MODEL, memory_bytes)
    assert index.vectors == len(matrix)
    stored = matrix.astype(np.float16).astype(np.float32) if half else matrix
    for row in (0, 40, 161):
        scores = stored @ matrix[row]
        wanted = np.argsort(-scores, kind="stable")[:k]
        hits = index.nearest(matrix[row], k)
        assert [hit.item_id for hit in hits] == [f"i{each}" for each in wanted]
        assert [hit.text for hit in hits] == [f"text {each}" for each in wanted]
        assert [hit.score for hit in hits] == pytest.approx(scores[wanted].tolist(), abs=1e-5)


@pytest.mark.parametrize("memory_bytes", [2**30, 0], ids=["in memory", "from the shards"])
def test_many_queries_get_the_ranks_of_one_product(
    tmp_path: Path, matrix: np.ndarray, memory_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.worker.search.index.BATCH_VECTORS", 50)
    monkeypatch.setattr("tasks.worker.search.index.BATCH_QUERIES", 7)
    index = Index(write(tmp_path, matrix), PREFIX, MODEL, memory_bytes)
    queries = np.random.default_rng(8).normal(size=(40, WIDTH)).astype(np.float32)
    own = index.places_of([f"i{3 * row}" for row in range(39)] + ["not there"])
    assert own.tolist() == [3 * row for row in range(39)] + [-1]
    found = index.search(queries, 10, own)
    scores = queries @ matrix.T
    ranks = (scores[:39] >= scores[np.arange(39), own[:39], None] - 1e-6).sum(axis=1)
    assert found.ranks.tolist() == [*ranks.tolist(), ABSENT]
    assert np.array_equal(found.places, np.argsort(-scores, axis=1, kind="stable")[:, :10])


def test_an_item_as_right_as_the_own_one_is_no_miss(
    tmp_path: Path, matrix: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tasks.worker.search.index.BATCH_VECTORS", 50)
    monkeypatch.setattr("tasks.worker.search.index.BATCH_QUERIES", 1)
    index = Index(write(tmp_path, matrix), PREFIX, MODEL, 0)
    first, second = matrix[0], matrix[140]
    order = [np.argsort(-(matrix @ query), kind="stable") for query in (first, second)]
    own = np.array([order[0][4], order[1][2]])  # ranks 5 and 3
    better = np.array([[0, order[0][0]], [0, order[0][2]], [1, order[1][1]], [1, order[1][60]]])
    better = better[np.argsort(better[:, 1], kind="stable")]
    shared = np.ones(len(matrix), dtype=bool)
    found = index.search(np.stack([first, second]), 3, own, shared=shared, relevant=(better[:, 0], better[:, 1]))
    assert found.ranks.tolist() == found.shared_ranks.tolist() == [3, 2]
    assert found.places.tolist() == [each[:3].tolist() for each in order], "people see them nevertheless"


def test_a_collapsed_model_ranks_last(tmp_path: Path, matrix: np.ndarray) -> None:
    index = Index(write(tmp_path, np.repeat(matrix[:1], len(matrix), axis=0)), PREFIX, MODEL)
    assert index.search(matrix[:1], 10, np.array([5])).ranks.tolist() == [len(matrix)]
    nothing = np.full((1, WIDTH), np.nan, dtype=np.float32)
    assert index.search(nothing, 10, np.array([5])).ranks.tolist() == [len(matrix)]


def test_of_equal_scores_the_first_places_are_found(tmp_path: Path, matrix: np.ndarray) -> None:
    copies = matrix.copy()
    copies[[3, 20, 30, *range(50, 90), 140]] = matrix[0]
    index = Index(write(tmp_path, copies), PREFIX, MODEL)
    for k in (1, 3, 10, 43, 60):
        wanted = np.argsort(-(copies @ matrix[0]), kind="stable")[:k]
        assert index.search(matrix[:1], k).places[0].tolist() == wanted.tolist()
    assert index.search(np.full((1, WIDTH), np.nan, np.float32), 3).places.tolist() == [[-1, -1, -1]]


def test_vectors_of_another_model_are_refused(tmp_path: Path, matrix: np.ndarray) -> None:
    with pytest.raises(CorruptFolder, match=r"by m-1, .*by m-2"):
        Index(write(tmp_path, matrix), PREFIX, "m-2")


def test_a_damaged_shard_is_named(tmp_path: Path, matrix: np.ndarray) -> None:
    store = write(tmp_path, matrix)
    shard = store.path(f"{PREFIX}/part-00002.parquet")
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CorruptFolder, match=r"part-00002\.parquet does"):
        Index(store, PREFIX, MODEL)


def test_a_shard_that_is_gone_is_named(tmp_path: Path, matrix: np.ndarray) -> None:
    store = write(tmp_path, matrix)
    store.delete(f"{PREFIX}/part-00002.parquet")
    with pytest.raises(CorruptFolder, match=r"part-00002\.parquet is"):
        Index(store, PREFIX, MODEL)
