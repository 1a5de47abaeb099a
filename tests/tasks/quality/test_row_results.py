from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.evaluation import (
    COLUMN,
    COMPETITORS,
    GOLDEN,
    GROUP,
    ITEM_ID,
    LABEL_CLASS,
    PAIR,
    QUERY_KEY,
    QUERY_TRAINED,
    ROW_ID,
    SPAN,
    UNSEEN,
    Role,
    loss_of,
    predicted_of,
    probability_of,
    rank_of,
)
from tasks.foundation.errors import StoreError
from tasks.quality.row_results import NO_VALUE, read_row_results

KEY = "runs/r/evaluate/attempt-1/rows.parquet"


def write(store: DirectoryStore, **changed: pa.Array) -> None:
    columns = {
        ROW_ID: pa.array(["a", "b", "c", "g"]),
        SPAN: pa.array(["2026-01", "2026-01", "2026-02", GOLDEN]),
        QUERY_KEY: pa.array([1, 1, 2, 3], pa.int64()),
        GROUP: pa.array([1, 1, 2, 3], pa.int64()),
        ITEM_ID: pa.array(["i", "j", "i", "k"]),
        PAIR: pa.array([True, True, False, True]),
        COMPETITORS: pa.array([300, 300, 300, 300], pa.int32()),
        UNSEEN: [False] * 4,
        QUERY_TRAINED: [True] * 4,
        LABEL_CLASS: pa.array([1, 1, 0, -1], pa.int8()),
        f"{COLUMN}locale": pa.array(["en", None, "en", None]),
        f"{COLUMN}gift": pa.array([True, None, False, None]),
        rank_of(Role.challenger): pa.array([1, 20, 1, 300], pa.int32()),
        loss_of(Role.challenger): pa.array([0.5, 1.5, 9.0, 9.0], pa.float32()),
        probability_of(Role.challenger): pa.array([0.9, 0.2, 0.1, 0.5], pa.float32()),
        predicted_of(Role.challenger): pa.array([1, 0, 0, 1], pa.int8()),
        rank_of(Role.untrained): pa.array([2, 2, 2, 2], pa.int32()),
        loss_of(Role.untrained): pa.array([3.0, 3.0, 3.0, 3.0], pa.float32()),
        **changed,
    }
    store.path(KEY).parent.mkdir(parents=True)
    pq.write_table(pa.table(columns), store.path(KEY))


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_numbers_of_the_holdout_leave_out_the_golden_set_and_rows_that_are_no_pairs(store: DirectoryStore):
    write(store)
    results = read_row_results(store, KEY)
    found = results.metrics(Role.challenger)
    assert (found["recall@1"], found["recall@100"], found["loss"]) == (0.5, 1.0, 1.0)
    assert found["accuracy"] == pytest.approx(2 / 3), "of the rows with a class, pairs or not"
    assert results.metrics(Role.challenger, results.golden)["recall@100"] == 0.0


def test_a_model_without_a_classifier_has_no_such_metrics(store: DirectoryStore):
    write(store)
    results = read_row_results(store, KEY)
    assert results.roles == (Role.challenger, Role.untrained)
    assert "accuracy" not in results.metrics(Role.untrained)


def test_metrics_of_a_slice(store: DirectoryStore):
    write(store)
    results = read_row_results(store, KEY)
    assert results.columns["locale"].tolist() == ["en", NO_VALUE, "en", NO_VALUE]
    assert results.columns["gift"].tolist() == ["true", NO_VALUE, "false", NO_VALUE]
    assert results.metrics(Role.challenger, results.columns["locale"] == "en")["recall@1"] == 1.0
    assert results.metrics(Role.challenger, np.zeros(4, dtype=bool)) == {}


def test_a_file_that_cant_be_read_is_named(store: DirectoryStore):
    with pytest.raises(StoreError, match=r"rows\.parquet.* read"):
        read_row_results(store, KEY)
    write(store)
    store.write(KEY, b"damaged")
    with pytest.raises(StoreError, match=r"rows\.parquet.* read"):
        read_row_results(store, KEY)
