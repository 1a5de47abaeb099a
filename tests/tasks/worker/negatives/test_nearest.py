"""The nearest allowed items, compared with a search of everything in plain Python."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.load import load_config
from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.data.rows import normal_text
from tasks.worker.negatives.known import KnownPairs, id_hashes, text_hashes
from tasks.worker.negatives.nearest import ReleasedItems, nearest_negatives

WIDTH, ITEMS, QUERIES, COUNT = 8, 90, 40, 3
HEADS = load_config().heads
RANDOM = np.random.default_rng(3)


def unit(rows: int) -> np.ndarray:
    drawn = RANDOM.normal(size=(rows, WIDTH)).astype(np.float32)
    return drawn / np.linalg.norm(drawn, axis=1, keepdims=True)


VECTORS, LOOKED_FOR = unit(ITEMS), unit(QUERIES)
IDS = [f"i{number}" for number in range(ITEMS)]
TEXTS = [f"Text {number % 60}" for number in range(ITEMS)]  # some items have one text


def released(folder: Path) -> ReleasedItems:
    store, source = DirectoryStore(folder / "workspace"), folder / "shards"
    source.mkdir()
    for number, part in enumerate(np.array_split(np.arange(ITEMS), 3)):
        flat = pa.array(VECTORS[part].reshape(-1))
        columns = {"item_id": [IDS[row] for row in part], "text": [TEXTS[row] for row in part]}
        vectors = pa.FixedSizeListArray.from_arrays(flat, WIDTH)
        pq.write_table(
            pa.table({**columns, "vector": vectors}), source / f"part-{number:05d}.parquet", row_group_size=7
        )
    commit(store, "vectors/m", source, "vectors", {"model_version": "m", "width": WIDTH, "type": "fp32"})
    return ReleasedItems.open(store, "vectors/m", "m", 2**20)


def rows_of(pairs: list[tuple[int, int]]) -> pa.Table:
    """Rows with the query `Query <number>` and an item, whose text is in other capitals."""
    queries = [f"query {query}" for query, _ in pairs]
    return pa.table(
        {
            "query": pa.array(queries, pa.string()),
            "item_id": pa.array([IDS[item] for _, item in pairs], pa.string()),
            "item": pa.array([TEXTS[item].upper() for _, item in pairs], pa.string()),
        }
    )


@pytest.mark.parametrize("known_items", [0, 4, ITEMS - 5])
def test_they_are_the_nearest_below_the_limit_that_no_row_pairs_with_the_query(tmp_path: Path, known_items: int):
    scores = LOOKED_FOR @ VECTORS.T
    limits = np.sort(scores, axis=1)[:, -8].astype(np.float32)  # seven items are too near
    # The nearest ones are known, so that the search has to look behind them.
    pairs = [(q, item) for q in range(QUERIES) for item in np.argsort(-scores[q])[7 : 7 + known_items].tolist()]
    known = KnownPairs([rows_of(pairs)], HEADS)
    hashes = text_hashes(pa.chunked_array([[f"Query {q}" for q in range(QUERIES)]]))
    found = nearest_negatives(released(tmp_path), LOOKED_FOR, hashes, limits, known, COUNT)
    for query in range(QUERIES):
        texts = {normal_text(TEXTS[item]) for asked, item in pairs if asked == query}
        allowed = [
            item
            for item in np.argsort(-scores[query]).tolist()
            if scores[query, item] < limits[query] and normal_text(TEXTS[item]) not in texts
        ]
        wanted = (allowed + [-1] * COUNT)[:COUNT]
        assert found[query].tolist() == wanted, query


def test_an_item_is_found_by_its_id(tmp_path: Path):
    items = released(tmp_path)
    places = items.places_of(id_hashes(pa.chunked_array([["i89", "nowhere", "i0"]])))
    assert places.tolist() == [89, -1, 0]
