import dataclasses
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import HoldoutRule
from tasks.data import holdout
from tasks.data.holdout import is_training, split_holdout
from tasks.foundation.errors import DataError
from tasks.worker.process.job import Rank
from tasks.worker.training import training_rows
from tasks.worker.training.batches import make_plan
from tasks.worker.training.known_pairs import LineageKeys, find_known_positives, open_known
from tasks.worker.training.pair_arrays import Pairs
from tasks.worker.training.record_files import Column
from tasks.worker.training.row_keys import TextKeys
from tasks.worker.training.start import build_parts
from tasks.worker.training.tokenised import open_tokens
from tasks.worker.training.training_rows import (
    TrainingRows,
    class_weights,
    first_rows,
    lineage_keys,
    make_pairs,
    open_pairs,
    read_training_rows,
    replayed_rows,
)
from tests.support.workspace.jobs import (
    CLASSIFIER,
    FEATURES,
    all_rows,
    change_rows,
    make_job,
    make_workspace,
    tiny_config,
    write_rows,
)

# All that says which rows there are, and what is known of them.
SETTINGS = (
    "heads.contrastive.positives_only=true",
    "heads.classification.loss=balanced",
    "train.replay=0.2",
    "train.keep_best={metric: mrr@10, rows: 5, patience: null}",
    "train.batch_by=locale",
    "model.prompts={query: 'want ', item: 'is '}",
)


def test_balanced_classes_count_the_same_together():
    counts = np.array([1, 3])
    assert class_weights(counts, tiny_config(CLASSIFIER).heads).tolist() == [1, 1]
    balanced = tiny_config(CLASSIFIER, "heads.classification.loss=balanced").heads
    assert class_weights(counts, balanced) == pytest.approx([2, 2 / 3])
    assert class_weights(np.array([0, 1]), balanced)[1] == 1, "a class may be absent"


def test_rows_have_every_column_in_use(tmp_path: Path):
    store, rows = make_workspace(tmp_path)
    config = tiny_config(*FEATURES, "evaluate.slices=[locale]")
    assert {"price", "locale", "gift"} < set(all_rows(store, [rows], config).column_names)
    assert "price" not in all_rows(store, [rows], tiny_config()).column_names


def test_a_missing_column_is_named(tmp_path: Path):
    store, rows = make_workspace(tmp_path)
    with pytest.raises(DataError, match=r"2026-01: .*'weight'"):
        all_rows(store, [rows], tiny_config(*FEATURES, "features.numeric=[weight]"))


def test_pairs_are_tokens_and_features_of_the_rows(tmp_path: Path):
    store, rows = make_workspace(tmp_path, rows=30, distinct=12)
    config = tiny_config(*FEATURES, CLASSIFIER, "train.max_tokens={query: 7, item: 5}")
    table = all_rows(store, [rows], config)
    training_rows = make_pairs([table], build_parts(config, [table]), config)
    assert len(training_rows) == 30
    assert training_rows.query.lengths.max() == 7
    assert training_rows.item.lengths.max() <= 5
    ids = table["item_id"].to_pylist()
    same = np.array([[one == other for other in ids] for one in ids])
    assert ((training_rows.item_key[:, None] == training_rows.item_key[None, :]) == same).all()
    assert training_rows.item_features.numeric.any()
    assert not training_rows.query_features.numeric.any()


def test_rows_in_pieces_make_the_same_model_and_pairs_as_in_one(tmp_path: Path):
    store, rows = make_workspace(tmp_path, rows=90, distinct=12)
    config = tiny_config(*FEATURES, CLASSIFIER)
    table = all_rows(store, [rows], config)
    made = []
    for tables in ([table], [table.slice(start, 7) for start in range(0, 90, 7)]):
        parts = build_parts(config, tables)
        made.append((parts.tokenizer.to_str(), parts.features, make_pairs(tables, parts, config)))
    (tokenizer, features, whole), (*others, pieces) = made
    assert others == [tokenizer, features]
    for one, other in ((whole.query, pieces.query), (whole.item, pieces.item)):
        assert (one.ids.dtype, one.offsets.dtype) == (other.ids.dtype, other.offsets.dtype) == (np.int32, np.int64)
        assert one.ids.tolist() == other.ids.tolist()
        assert one.offsets.tolist() == other.offsets.tolist()
    for name in ("query_features", "item_features"):
        assert (getattr(whole, name).numeric == getattr(pieces, name).numeric).all()
        assert (getattr(whole, name).categorical == getattr(pieces, name).categorical).all()
    for name in ("item_key", "text_key", "query_key", "pair", "label_class", "class_weight"):
        assert (getattr(whole, name) == getattr(pieces, name)).all()


def test_training_rows_come_again_and_without_the_holdout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store, rows = make_workspace(tmp_path, rows=200)
    config = tiny_config()
    training = TrainingRows(store, [rows, rows], config)
    hashed: list[int] = []

    def counted(table: pa.Table, *arguments: Any) -> np.ndarray:
        hashed.append(table.num_rows)
        return is_training(table, *arguments)

    monkeypatch.setattr(holdout, "is_training", counted)
    next(iter(training))  # not to the end, so that nothing is known yet
    expected = (
        split_holdout(all_rows(store, [rows, rows], config), HoldoutRule.of(config.evaluate))
        .training["row_id"]
        .to_pylist()
    )
    for _ in range(2):
        assert [row_id for table in training for row_id in table["row_id"].to_pylist()] == expected
    assert hashed == [200, 200, 200], "the texts of a span are hashed once, after a look at the first of them"
    some = list(training.where(lambda table: np.arange(table.num_rows) < 30))
    assert hashed[3:] == [30, 30], "of rows that nobody asks for, nothing is hashed"
    both = [[*rows["row_id"].to_pylist()] for rows in some]
    assert both == [expected[: len(both[0])]] * 2
    first = first_rows(training, 130)
    assert [row_id for table in first for row_id in table["row_id"].to_pylist()] == expected[:130]
    assert sum(table.num_rows for table in first_rows(training, 10_000)) == len(expected)


def test_the_newest_holdout_rows_are_read_and_no_span_that_is_not_needed(tmp_path: Path):
    store, first = make_workspace(tmp_path, rows=200)
    later = write_rows(store, "2026-02", 200, tmp_path)
    gone = first.model_copy(update={"prefix": "runs/gone"})
    config = tiny_config("train.evaluate_rows=50")
    rule = HoldoutRule.of(config.evaluate)
    sides = [split_holdout(all_rows(store, [ref], config), rule) for ref in (first, later)]
    held = [each.held["row_id"].to_pylist() for each in sides]
    assert len(held[1]) < 50 < len(held[0]) + len(held[1])
    inputs = TrainInputs(rows=(later,), history=(gone, first), parent=None)
    _, newest = read_training_rows(make_job(store, config, inputs), inputs)
    assert newest["row_id"].to_pylist() == [*held[0], *held[1]][-50:]


def test_a_run_reads_from_files_what_a_batch_reads_from_its_rows(tmp_path: Path, scratch: Path):
    store, rows = make_workspace(tmp_path, rows=90, distinct=12)
    few = write_rows(store, "2026-02", 3, tmp_path)
    refs = (few, change_rows(store, rows, "2026-03", _one_query_for_many_items, tmp_path))
    config = tiny_config(*FEATURES, CLASSIFIER, *SETTINGS)
    inputs = TrainInputs(rows=refs, history=(rows,), parent=None)
    job = make_job(store, config, inputs)
    training, replayed = read_training_rows(job, inputs)[0], replayed_rows(job, inputs)
    parts = build_parts(config, training)
    again, own = list(replayed), sum(table.num_rows for table in training)
    expected = dataclasses.replace(make_pairs([*training, *again], parts, config), own_rows=own)
    said, every = lineage_keys(job, inputs), TextKeys(store, (rows, *refs), None, config.heads)
    expected = dataclasses.replace(expected, known=find_known_positives(every, every.rows))
    assert all(len(each.queries) for each in expected.known)
    assert again
    for _ in ("made", "found"):
        known = open_known(job, said, lambda: None)
        opened = open_pairs(job, training, replayed, known, parts, lambda: None)
        assert_same(opened, expected)
        assert not list(scratch.glob("millrace-*"))
    plans = [make_plan(config, 0, training_rows) for training_rows in (opened, expected)]
    batches = [[plan.rows(number).tolist() for number in range(len(plan))] for plan in plans]
    assert batches[0] == batches[1]


def _one_query_for_many_items(rows: pa.Table) -> pa.Table:
    queries = pa.array([f"something {number % 4}" for number in range(rows.num_rows)])
    return rows.set_column(rows.column_names.index("query"), "query", queries)


@pytest.mark.parametrize("by_validate", [False, True])
def test_the_workers_of_a_machine_share_one_copy(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch, by_validate: bool
):
    store, rows = make_workspace(tmp_path, rows=90, distinct=12)
    config, inputs = tiny_config(*FEATURES), TrainInputs(rows=(rows,), history=(), parent=None)
    if by_validate:
        found = lineage_keys(make_job(store, config, inputs), inputs)
        positives = found.commit_known("runs/r/validate/positives/s", tmp_path / "positives")
        inputs = inputs.model_copy(update={"positives": positives})
        monkeypatch.setattr(LineageKeys, "write_known", None)
    parts = build_parts(config, TrainingRows(store, [rows], config))
    opened, readers, all_there = {}, [], threading.Barrier(4)

    def noted(*arguments: Any) -> Any:
        readers.append(threading.current_thread().name)
        return open_tokens(*arguments)

    def work(rank: Rank) -> None:
        training = TrainingRows(store, [rows], config)
        job = make_job(store, config, inputs, rank=rank)
        known = open_known(job, lineage_keys(job, inputs), all_there.wait)
        opened[rank.index] = open_pairs(job, training, replayed_rows(job, inputs), known, parts, all_there.wait)

    monkeypatch.setattr(training_rows, "open_tokens", noted)
    ranks = [Rank(index, 4, index % 2, 2) for index in range(4)]
    workers = [threading.Thread(target=work, args=(rank,), name=f"rank {rank.index}") for rank in ranks]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(readers) == ["rank 0", "rank 2"], "the first of each machine"
    assert not list(scratch.glob("millrace-*"))
    assert all(isinstance(each.query.ids, Column) for each in opened.values()), "read from the files, not in memory"
    for other in (1, 2, 3):
        assert_same(opened[other], opened[0])


def assert_same(one: Pairs, other: Pairs) -> None:
    every = [one.query, one.item, one.query_features, one.item_features, *one.known, one]
    others = [other.query, other.item, other.query_features, other.item_features, *other.known, other]
    names = ("ids", "offsets", "numeric", "categorical", "queries", "keys", "tokens", "item_key", "text_key")
    for ours, theirs in zip(every, others, strict=True):
        for name in (*names, "query_key", "pair", "label_class", "class_weight", "own_rows"):
            if hasattr(ours, name):
                assert (np.asarray(getattr(ours, name)) == np.asarray(getattr(theirs, name))).all(), name
    assert (one.query.pad, one.item.pad) == (other.query.pad, other.item.pad)


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary folders are made."""
    (tmp_path / "scratch").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path / "scratch"
