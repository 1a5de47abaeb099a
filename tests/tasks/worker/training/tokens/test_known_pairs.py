"""Pairs known to be right, compared with the rules in words over all rows; and the popularity of items."""

import io
import math
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs.load import load_config
from tasks.worker.training import pair_arrays, row_keys
from tasks.worker.training.known_pairs import Positives, PositivesFile, find_known_positives
from tasks.worker.training.pair_arrays import write_popularity
from tasks.worker.training.row_keys import ROW_KEYS, Buckets, TextKeys, id_keys, text_keys
from tests.support.workspace.jobs import CLASSIFIER, change_rows, make_workspace, tiny_config


@pytest.mark.parametrize("at_once", [2**18, 16])
def test_an_item_is_right_by_its_id_and_by_each_text_that_any_row_gives_it(
    monkeypatch: pytest.MonkeyPatch, at_once: int
):
    monkeypatch.setattr(row_keys, "ROWS_AT_ONCE", at_once)
    random = np.random.default_rng(4)
    said = np.zeros(300, dtype=ROW_KEYS)
    for name, many in (("query_key", 40), ("text_key", 70), ("item_key", 50)):
        said[name] = random.integers(0, 2**63, many)[random.integers(0, many, len(said))]
    said["pair"] = random.random(len(said)) < 0.3
    found = find_known_positives(np.array_split(said, 9), len(said))
    query, item, text = (said[name] for name in ("query_key", "item_key", "text_key"))
    queries, items, texts = (np.unique(each) for each in (query, item, text))
    of_rows = 0
    for row, asked in enumerate(queries.tolist()):
        right = set(item[said["pair"] & (query == asked)].tolist())
        named = set(text[np.isin(item, list(right))].tolist())
        of_rows += len(named - set(text[said["pair"] & (query == asked)].tolist()))
        by_item, by_text = (
            found.items.among(queries[row : row + 1], items)[1],
            found.texts.among(queries[row : row + 1], texts)[1],
        )
        assert set(items[by_item].tolist()) == (right if len(right) > 1 else set()), "a single one is a row's own"
        assert set(texts[by_text].tolist()) == (named if len(named) > 1 else set())
    assert of_rows > 10, "texts that no row pairs with the query"


def test_all_rows_count_on_any_side_of_the_holdout_and_the_golden_set(tmp_path: Path):
    store, first = make_workspace(tmp_path, rows=40)
    later = change_rows(store, first, "2026-02", lambda rows: rows.slice(0, 30), tmp_path)
    golden = io.BytesIO()
    columns = {name: pa.array([f"a golden {name}"], pa.string()) for name in ("row_id", "query", "item", "item_id")}
    pq.write_table(pa.table(columns), golden)
    store.write("golden/k.parquet", golden.getvalue())
    heads = tiny_config(CLASSIFIER, "heads.contrastive.positives_only=true").heads
    said = TextKeys(store, (first, later), "golden/k.parquet", heads)
    rows = np.concatenate(list(said))
    table = pq.read_table(store.path(first.prefix) / "part-00000.parquet")
    assert (said.rows, len(rows)) == (70, 71)
    assert rows["query_key"][:40].tolist() == text_keys(table["query"]).tolist()
    assert rows["item_key"][40:70].tolist() == id_keys(table["item_id"])[:30].tolist()
    assert rows["pair"][:40].tolist() == [label >= 4 for label in table["label"].to_pylist()]
    assert rows["pair"][70], "though it has no label"
    assert rows["text_key"][70] == text_keys(pa.chunked_array([["A  golden ITEM"]]))[0]
    assert np.concatenate(list(TextKeys(store, (first,), None, load_config().heads)))["pair"].all()


@settings(max_examples=60)
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_positives_are_those_of_all_rows_and_not_only_of_the_batch(queries: int, items: int, seed: int):
    random = np.random.default_rng(seed)
    query, key = random.integers(0, queries, 30), random.integers(0, items, 30)
    pair = random.random(30) < 0.6
    known = {(one, other) for one, other, belongs in zip(query, key, pair, strict=True) if belongs}
    alone = {one for one in range(queries) if len({other for each, other in known if each == one}) < 2}
    batch = random.permutation(30)[:8]
    found = Positives.of(query[pair], key[pair])
    expected = [[(one, other) in known and one not in alone for other in key[batch]] for one in query[batch]]
    hits = np.zeros((8, 8), dtype=bool)
    hits[found.among(query[batch], key[batch])] = True
    assert hits.tolist() == expected
    part = found.part(np.unique(query[batch]))
    for one, other in zip(part.among(query[batch], key[batch]), found.among(query[batch], key[batch]), strict=True):
        assert one.tolist() == other.tolist()
    asked = np.unique(np.append(query[batch], 99))
    whose, keys = found.lists(asked)
    assert set(zip(asked[whose], keys, strict=True)) == {
        (one, other) for one, other in known if one in asked and one not in alone
    }


@pytest.mark.parametrize("rows", [0, 5, 400])
def test_files_made_piece_by_piece_hold_what_is_sorted_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
):
    monkeypatch.setattr(row_keys, "ROWS_AT_ONCE", 16)  # 400 rows: 32 buckets
    random = np.random.default_rng(1)
    queries = np.concatenate([[0, 2**63 - 1], random.integers(0, 2**63, 60)])
    query, key = random.choice(queries, rows), random.integers(0, 2**63, 9)[random.integers(0, 9, rows)]
    buckets = Buckets(tmp_path, "pairs", rows, 2)
    for start in range(0, rows, 37):
        buckets.add(np.stack([query[start : start + 37], key[start : start + 37]], axis=1))
    with PositivesFile(tmp_path, "item_key") as file:
        for bucket in buckets:
            file.add(bucket[:, 0], bucket[:, 1])
    whole, written = Positives.of(query, key), Positives.open(tmp_path, "item_key")
    for name in ("queries", "offsets", "keys"):
        assert np.asarray(getattr(written, name)).tolist() == getattr(whole, name).tolist(), name
    assert len(list(tmp_path.iterdir())) == 3, "no bucket is left"


KIND = np.dtype([("item_key", "<i8"), ("pair", "<f4")])


@pytest.mark.parametrize("only", [None, "pair"])
def test_it_is_the_share_of_the_rows_times_the_number_of_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only: str | None
):
    for module in (row_keys, pair_arrays):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", 32)
    random = np.random.default_rng(3)
    rows = np.zeros(201, dtype=KIND)  # the last record is no row
    rows["item_key"] = random.integers(0, 2**63, 40)[random.zipf(1.5, 201) % 40]
    rows["pair"] = random.random(201) < 0.6
    rows.tofile(tmp_path / "rows")
    write_popularity(tmp_path / "rows", KIND, 200, "item_key", tmp_path / "found", only)
    found = np.fromfile(tmp_path / "found", np.float32)
    counted = [row for row in range(200) if only is None or rows["pair"][row]]
    counts = Counter(rows["item_key"][counted].tolist())
    for row in range(200):
        share = counts[int(rows["item_key"][row])] / len(counted)
        assert found[row] == pytest.approx(math.log(share * len(counts)) if row in counted else 0.0, abs=1e-5)
    assert len(list(tmp_path.iterdir())) == 2, "no bucket is left"


def test_equally_frequent_keys_have_none(tmp_path: Path):
    rows = np.zeros(12, dtype=KIND)
    rows["item_key"] = np.arange(12) % 4
    rows.tofile(tmp_path / "rows")
    write_popularity(tmp_path / "rows", KIND, 12, "item_key", tmp_path / "found")
    assert np.fromfile(tmp_path / "found", np.float32) == pytest.approx(np.zeros(12), abs=1e-6)
