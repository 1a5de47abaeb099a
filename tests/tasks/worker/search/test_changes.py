"""Two small releases whose vectors are known, and what changed from one to the other."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import commit
from tasks.contracts.evaluation import QUERY_KEY
from tasks.contracts.search import Changes
from tasks.data.query_places import hash_queries
from tasks.worker.search.changes import compare, shared_items
from tasks.worker.search.consumer import about_released, compare_models, search
from tasks.worker.search.index import Index

WIDTH = 32
QUERIES = pa.table({"query": ["q lamp", "q vase", "q chair"], "item": ["lamp", "vase", "chair"],
                    "item_id": ["lamp", "vase", "chair"]})  # fmt: skip


def unit(place: int) -> np.ndarray:
    vector = np.zeros(WIDTH, dtype=np.float32)
    vector[place] = 1.0
    return vector


def release(folder: Path, model: str, items: dict[str, np.ndarray], texts: dict[str, str]) -> Index:
    """Vectors of these items in two shards; the content is the text."""
    store, source = DirectoryStore(folder / "workspace"), folder / model
    source.mkdir()
    ids = list(items)
    for number, part in enumerate((ids[:3], ids[3:])):
        flat = pa.array(np.concatenate([items[item] for item in part]), pa.float32())
        names = [texts.get(item, item) for item in part]
        table = pa.table({"item_id": part, "text": names, "vector": pa.FixedSizeListArray.from_arrays(flat, WIDTH),
                          "content_sha256": names})  # fmt: skip
        pq.write_table(table, source / f"part-{number:05d}.parquet")
    commit(
        store,
        f"vectors/{model}",
        source,
        "vectors",
        {"model_version": model, "width": WIDTH, "max_tokens": 16, "type": "fp32"},
    )
    return Index(store, f"vectors/{model}", model)


NO_PAIRS = pa.table({QUERY_KEY: pa.array([], pa.int64()), "item_id": pa.array([], pa.string())})


@pytest.fixture(scope="module")
def changes(tmp_path_factory: pytest.TempPathFactory) -> Changes:
    folder = tmp_path_factory.mktemp("releases")
    many = {f"other {n}": unit(4 + n) for n in range(12)}
    first = release(folder, "m-1", {"lamp": unit(0), "vase": unit(1), "old": unit(2), **many}, {})
    second = release(
        folder, "m-2", {"lamp": unit(0), "vase": unit(1), "chair": unit(3), **many}, {"vase": "vase, blue"}
    )
    before = np.stack([unit(0), unit(2), unit(3)])  # finds the lamp at once, and the vase after the old item
    after = np.stack([unit(4), unit(1), unit(3)])  # finds vase and chair at once, and another item instead of the lamp
    both = shared_items(first, second)
    earlier, later = (
        search(first, QUERIES, before, NO_PAIRS, both[0]),
        search(second, QUERIES, after, NO_PAIRS, both[1]),
    )
    return compare(earlier, later, QUERIES, (1, 2), compare_models(earlier, later, int(both[0].sum())))


def test_items_are_counted_and_listed(changes: Changes) -> None:
    assert (changes.before, changes.after, changes.items_before, changes.items_after) == (1, 2, 15, 15)
    assert (changes.new_items, changes.gone_items, changes.changed_items) == (1, 1, 1)
    assert [item.item_id for item in changes.new] == ["chair"]
    assert [item.text for item in changes.gone] == ["old"]
    assert changes.same_item_cosine == pytest.approx(1.0)


def test_an_item_without_a_vector_was_not_found(changes: Changes) -> None:
    assert changes.metrics_before["recall@1"] == pytest.approx(1 / 3)
    assert changes.metrics_after["recall@1"] == pytest.approx(2 / 3)


def test_the_models_meet_on_what_both_releases_hold(changes: Changes) -> None:
    """Chair and old are of one release each. The vase has another text, and the same id."""
    assert (changes.shared.items, changes.shared.queries) == (14, 2)
    assert (changes.shared.metrics_before["recall@1"], changes.shared.metrics_after["recall@1"]) == (0.5, 0.5)
    assert changes.shared.metrics_after["mrr@10"] == 0.5, "the lamp is the 14th of 14: the chair doesn't count"
    assert "recall@100" not in changes.shared.metrics_after, "13 items compete"


def test_releases_of_many_shards_are_compared_in_little_memory() -> None:
    """Shards are as many as partitions: 1,024 for ten million items."""
    shards = [pa.table({"item_id": [f"item {number}"]}) for number in range(600)]
    earlier = cast(Index, SimpleNamespace(tables=lambda _: enumerate(shards[1:]), vectors=599))
    later = cast(Index, SimpleNamespace(tables=lambda _: enumerate(shards[::-1]), vectors=600))
    both = shared_items(earlier, later)
    assert (both[0].all(), np.flatnonzero(~both[1]).tolist()) == (True, [599])


def test_queries_whose_item_has_no_competitor_are_not_measured(tmp_path: Path) -> None:
    index = release(tmp_path, "m-1", {"lamp": unit(0), "vase": unit(1), "hat": unit(2), "bag": unit(3)}, {})
    query, vectors = QUERIES.slice(0, 1), np.stack([unit(0)])
    pairs = pa.table({QUERY_KEY: hash_queries(["q lamp"] * 3), "item_id": ["vase", "hat", "bag"]})
    shared = np.array([True, True, False, False])
    assert search(index, query, vectors, NO_PAIRS).metrics == {"recall@1": 1.0}, "three items compete"
    assert search(index, query, vectors, pairs).metrics == {}, "all are as right"
    found = search(index, query, vectors, pairs.slice(0, 1), shared).found
    assert (found.competitors.tolist(), found.shared_competitors.tolist()) == ([2], [0])


def test_wins_and_losses_come_with_ranks_and_hits(changes: Changes) -> None:
    # All items with an equal score rank before the own one: the vase was among the 14 that score 0.
    # The chair is in one release alone: it is a win of the catalogue, not of the model.
    assert [(each.query, each.rank_before, each.rank_after) for each in changes.wins] == [("q vase", 15, 1)]
    assert [(each.query, each.rank_before, each.rank_after) for each in changes.losses] == [("q lamp", 1, 15)]
    (vase,) = changes.wins
    assert (vase.before[0].item_id, vase.after[0].text) == ("old", "vase, blue")
    assert len(vase.before) == len(vase.after) == 5


def test_items_that_any_row_pairs_with_the_query_and_equal_texts_are_no_misses(tmp_path: Path) -> None:
    """The gates' rule. The query's own item is the fourth best; of the better ones, one is paired with the query."""
    items = {"paired": unit(0), "twin": unit(0), "other": unit(0), "lamp": unit(0) * 0.9 + unit(1) * 0.1}
    index = release(tmp_path, "m-1", items, {"twin": "LAMP", "lamp": "lamp", "paired": "light"})
    queries = QUERIES.slice(0, 1)
    pairs = pa.table({QUERY_KEY: hash_queries(["Q lamp", "q lamp", "q vase"]), "item_id": ["paired", "gone", "other"]})
    vectors = np.stack([unit(0)])
    assert search(index, queries, vectors, NO_PAIRS).found.ranks.tolist() == [3], "the twin has its text"
    assert search(index, queries, vectors, pairs).found.ranks.tolist() == [2]


def test_queries_about_items_that_the_later_release_lacks_are_left_out(tmp_path: Path) -> None:
    index = release(tmp_path, "m-1", {"lamp": unit(0), "vase": unit(1), "hat": unit(2), "bag": unit(3)}, {})
    assert about_released(QUERIES, index)["item_id"].to_pylist() == ["lamp", "vase"]


def test_the_overlap_is_a_share_of_the_ten_best(changes: Changes) -> None:
    assert changes.overlap_at_10 is not None
    assert 0 < changes.overlap_at_10 < 1
