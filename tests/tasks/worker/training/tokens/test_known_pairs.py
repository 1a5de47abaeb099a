"""What is known to be right, compared with the rules in words over all rows."""

import io
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.load import load_config
from tasks.worker.training import known_pairs, positives
from tasks.worker.training.known_pairs import ROW_KEYS, LineageKeys, find_known_positives
from tasks.worker.training.tokenised import id_keys, text_keys
from tests.support.workspace.jobs import CLASSIFIER, change_rows, make_workspace, tiny_config


@pytest.mark.parametrize("at_once", [2**18, 16])
def test_an_item_is_right_by_its_id_and_by_each_text_that_any_row_gives_it(
    monkeypatch: pytest.MonkeyPatch, at_once: int
):
    for module in (known_pairs, positives):
        monkeypatch.setattr(module, "ROWS_AT_ONCE", at_once)
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
    said = LineageKeys(store, (first, later), "golden/k.parquet", heads)
    rows = np.concatenate(list(said))
    table = pq.read_table(store.path(first.prefix) / "part-00000.parquet")
    assert (said.rows, len(rows)) == (70, 71)
    assert rows["query_key"][:40].tolist() == text_keys(table["query"]).tolist()
    assert rows["item_key"][40:70].tolist() == id_keys(table["item_id"])[:30].tolist()
    assert rows["pair"][:40].tolist() == [label >= 4 for label in table["label"].to_pylist()]
    assert rows["pair"][70], "though it has no label"
    assert rows["text_key"][70] == text_keys(pa.chunked_array([["A  golden ITEM"]]))[0]
    assert np.concatenate(list(LineageKeys(store, (first,), None, load_config().heads)))["pair"].all()
