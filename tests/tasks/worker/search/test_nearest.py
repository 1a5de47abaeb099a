"""The nearest allowed items, compared with a search of everything in plain Python."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.worker.model.ranks import HOST
from tasks.worker.search.mine_negatives import ReleasedItems, RightItems, nearest_negatives
from tasks.worker.training.known_pairs import KnownPositives, Positives
from tasks.worker.training.row_keys import id_keys, text_keys

WIDTH, ITEMS, QUERIES, COUNT = 8, 90, 40, 3
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
    commit(
        store, "vectors/m", source, "vectors", {"model_version": "m", "width": WIDTH, "type": "fp32", "max_tokens": 16}
    )
    return ReleasedItems.open(store, "vectors/m", "m", 2**20, HOST, None)


@pytest.mark.parametrize("right_items", [1, 4, ITEMS - 8])
def test_they_are_the_nearest_below_the_limit_that_are_not_right(tmp_path: Path, right_items: int):
    scores = LOOKED_FOR @ VECTORS.T
    ranked = np.sort(scores, axis=1)
    limits = ((ranked[:, -7] + ranked[:, -8]) / 2).astype(np.float32)  # seven items are too near
    # The nearest ones are right, so that the search has to look behind them. The first is that of the query's own row;
    # rows call an item by another text than the release does, and each query has the released text of an item too.
    pairs = [(q, item) for q in range(QUERIES) for item in np.argsort(-scores[q])[7 : 7 + right_items].tolist()]
    own = np.array([item for _, item in pairs[::right_items]])
    asked = text_keys(pa.chunked_array([[f"query {query}" for query in range(QUERIES)]]))
    of_rows = [np.roll(own, 1), own]  # the texts of items, each query with two
    ids, texts = id_keys(pa.chunked_array([IDS])), text_keys(pa.chunked_array([[text.upper() for text in TEXTS]]))
    known = KnownPositives(
        Positives.of(asked[[query for query, _ in pairs]], ids[[item for _, item in pairs]]),
        Positives.of(np.tile(asked, 2), texts[np.concatenate(of_rows)]),
    )
    items = released(tmp_path)
    right = RightItems(known, items, asked, ids[own], text_keys(pa.chunked_array([["of the row"] * QUERIES])))
    found = nearest_negatives(items, LOOKED_FOR, asked, limits, right, COUNT)
    for query in range(QUERIES):
        named = {TEXTS[item] for one, item in pairs if one == query} | {TEXTS[each[query]] for each in of_rows}
        allowed = [
            item
            for item in np.argsort(-scores[query]).tolist()
            if scores[query, item] < limits[query] and TEXTS[item] not in named
        ]
        assert found[query].tolist() == (allowed + [-1] * COUNT)[:COUNT], query


def test_an_item_is_found_by_its_id(tmp_path: Path):
    items = released(tmp_path)
    assert items.places_of(id_keys(pa.chunked_array([["i89", "nowhere", "i0"]]))).tolist() == [89, -1, 0]
