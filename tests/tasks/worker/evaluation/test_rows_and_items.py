"""Samples of the holdout, and items as right as a row's own, looked up in what validate wrote."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.contracts.evaluation import QUERY_KEY
from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.references import CatalogueRef, CheckpointRef, ModelRef, RowsRef
from tasks.data.label_columns import pair_mask
from tasks.data.query_places import hash_queries
from tasks.data.rows import ITEM, ITEM_ID, LABEL, QUERY, read_rows
from tasks.judging.golden_set import store_golden_set
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.evaluation.rows_and_items import (
    known_pairs,
    read_holdout,
    relevant_items,
    sample_sizes,
    with_golden_set,
)
from tasks.worker.model.relevant import find_relevant, number_texts
from tasks.worker.process.job import Rank
from tasks.worker.rows import holdout
from tests.support.workspace.jobs import CLASSIFIER, change_rows, make_job, make_workspace, tiny_config, with_held


@pytest.mark.parametrize(
    ("there", "most", "measured"),
    [
        ([5, 5], 20, [5, 5]),
        ([100, 100, 100], 20, [5, 5, 10]),
        ([100, 2, 100], 20, [8, 2, 10]),
        ([100, 100, 3], 20, [8, 9, 3]),
        ([2, 1, 100], 20, [2, 1, 17]),
        ([100, 100, 100, 100], 21, [3, 3, 4, 11]),
        ([100], 20, [20]),
        ([100, 100, 100], 1, [0, 0, 1]),
    ],
)  # fmt: skip
def test_the_newest_span_has_half_and_the_others_share_the_rest(there: list[int], most: int, measured: list[int]):
    assert sample_sizes(there, most) == measured


def test_a_higher_cap_takes_no_row_away():
    there = [7, 40, 0, 13, 90, 25, 60]
    before = [0] * len(there)
    for most in range(1, sum(there) + 5):
        now = sample_sizes(there, most)
        assert sum(now) == min(most, sum(there))
        assert all(new >= old for new, old in zip(now, before, strict=True)), most
        before = now
    assert before == there


@pytest.mark.parametrize("positives_only", ["true", "false"])
def test_items_as_right_are_those_of_all_rows_of_all_spans(
    tmp_path: Path, positives_only: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(holdout, "FIRST_ROWS", 16)
    config = tiny_config(CLASSIFIER, f"heads.contrastive.positives_only={positives_only}")
    store, plain = make_workspace(tmp_path, rows=300, distinct=70)

    def repeated(step: int, label_step: int) -> RowsRef:
        def change(table: pa.Table) -> pa.Table:
            numbers = range(table.num_rows)
            new = {
                QUERY: pa.array([f"Query {number * step % 37}" for number in numbers]),
                LABEL: pa.array([float(number * label_step % 5 + 1) for number in numbers]),
            }
            for name, values in new.items():
                table = table.set_column(table.column_names.index(name), name, values)
            return table

        return change_rows(store, plain, f"2026-0{step}", change, tmp_path)

    refs = with_held(store, config, repeated(2, 3), repeated(5, 2), repeated(7, 1))
    golden = tmp_path / "golden.csv"
    golden.write_text("query,item,item_id\nquery 3,a red pot,new\nnobody asks,a tin,tin\n")
    model = ModelRef(version="", checkpoint=CheckpointRef(prefix="", step=0, sha256=""))
    catalogue = CatalogueRef(prefix="", items=0, partitions=0, sha256="")
    key = store_golden_set(store, str(golden))
    inputs = EvaluateInputs(rows=refs, catalogue=catalogue, challenger=model, champion=None, golden=key)
    job = make_job(store, config, inputs)
    rows = with_golden_set(job, read_holdout(job, inputs, ()), inputs.golden)

    every = pa.concat_tables(read_rows(store, refs, []))
    texts = dict(zip(every[ITEM_ID].to_pylist(), every[ITEM].to_pylist(), strict=True)) | {"new": "x", "tin": "y"}
    some = sorted(texts)[::2] if "new" in sorted(texts)[::2] else sorted(texts)[1::2]
    items = sorted({*some, *rows.table[ITEM_ID].to_pylist()})
    corpus = pa.table({ITEM_ID: items, "text": [texts[item] for item in items]})
    with open_accelerator("cpu", Rank(0, 1, 0), config, "fp32") as accelerator:
        found = relevant_items(rows, known_pairs(job, accelerator, rows), corpus)

    right = every.filter(pa.array(pair_mask(every, config.heads)))
    pairs = [*zip(right[QUERY].to_pylist(), right[ITEM_ID].to_pylist(), strict=True)]
    pairs += [("query 3", "new"), ("nobody asks", "tin")]
    place = {item: number for number, item in enumerate(items)}
    pairs = [(query, item) for query, item in pairs if item in place]
    keys = hash_queries([query for query, _ in pairs])
    expected = find_relevant(
        rows.facts[QUERY_KEY].to_numpy(),
        number_texts(corpus["text"].to_pylist()),
        keys,
        np.array([place[item] for _, item in pairs]),
    )
    own = [place[item] for item in rows.table[ITEM_ID].to_pylist()]
    sets = [
        [set(each.other_relevant_items(row, target).tolist()) for row, target in enumerate(own)]
        for each in (found, expected)
    ]
    assert sets[0] == sets[1]
    assert np.mean([len(each) for each in sets[0]]) > 3, "queries have several right items"
