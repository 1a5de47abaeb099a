from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tasks.contracts.checkpoints import HoldoutRule
from tasks.contracts.jobs import TrainInputs
from tasks.data.holdout import split_holdout
from tasks.foundation.errors import DataError
from tasks.worker.training.build import build_parts
from tasks.worker.training.pairs import (
    TrainingRows,
    first_rows,
    label_classes,
    label_weights,
    make_pairs,
    pair_mask,
    read_training_rows,
)
from tests.support.workspace.jobs import (
    CLASSIFIER,
    FEATURES,
    all_rows,
    make_job,
    make_workspace,
    tiny_config,
    write_rows,
)

LABELS = pa.table({"label": pa.array([1.0, 2.0, 3.0, 4.0, 5.0, None])})


def test_balanced_classes_count_the_same_together():
    classes = np.array([1, 1, 1, -1, 0])
    assert label_weights(classes, tiny_config(CLASSIFIER).heads).tolist() == [1, 1, 1, 0, 1]
    balanced = tiny_config(CLASSIFIER, "heads.classification.loss=balanced").heads
    assert label_weights(classes, balanced) == pytest.approx([2 / 3, 2 / 3, 2 / 3, 0, 2])
    assert label_weights(np.array([-1, 1]), balanced).tolist() == [0, 1], "a class may be absent"


def test_rows_have_every_column_in_use(tmp_path: Path):
    store, rows = make_workspace(tmp_path)
    config = tiny_config(*FEATURES, "evaluate.slices=[locale]")
    assert {"price", "locale", "gift"} < set(all_rows(store, [rows], config).column_names)
    assert "price" not in all_rows(store, [rows], tiny_config()).column_names


def test_a_missing_column_is_named(tmp_path: Path):
    store, rows = make_workspace(tmp_path)
    with pytest.raises(DataError, match="span 2026-01: no column 'weight'"):
        all_rows(store, [rows], tiny_config(*FEATURES, "features.numeric=[weight]"))


def test_labels_are_mapped_to_classes():
    assert label_classes(LABELS, tiny_config(CLASSIFIER).heads).tolist() == [0, 0, -1, 1, 1, -1]
    assert label_classes(LABELS, tiny_config().heads).tolist() == [-1] * 6


def test_pairs_are_all_rows_or_the_positive_ones():
    assert pair_mask(LABELS, tiny_config(CLASSIFIER).heads).all()
    positives = tiny_config(CLASSIFIER, "heads.contrastive.positives_only=true")
    assert pair_mask(LABELS, positives.heads).tolist() == [False, False, False, True, True, False]


def test_pairs_are_tokens_and_features_of_the_rows(tmp_path: Path):
    store, rows = make_workspace(tmp_path, rows=30, distinct=12)
    config = tiny_config(*FEATURES, CLASSIFIER, "train.max_tokens={query: 7, item: 5}")
    table = all_rows(store, [rows], config)
    pairs = make_pairs([table], build_parts(config, [table]), config)
    assert len(pairs) == 30
    assert pairs.query.lengths.max() == 7
    assert pairs.item.lengths.max() <= 5
    ids = table["item_id"].to_pylist()
    same = np.array([[one == other for other in ids] for one in ids])
    assert ((pairs.item_key[:, None] == pairs.item_key[None, :]) == same).all()
    assert pairs.item_features.numeric.any()
    assert not pairs.query_features.numeric.any()


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
    for name in ("item_key", "text_key", "query_key", "pair", "label_class"):
        assert (getattr(whole, name) == getattr(pieces, name)).all()


def test_training_rows_come_again_and_without_the_holdout(tmp_path: Path):
    store, rows = make_workspace(tmp_path, rows=200)
    config = tiny_config()
    training = TrainingRows(store, [rows, rows], config)
    expected = (
        split_holdout(all_rows(store, [rows, rows], config), HoldoutRule.of(config.evaluate))
        .training["row_id"]
        .to_pylist()
    )
    for _ in range(2):
        assert [row_id for table in training for row_id in table["row_id"].to_pylist()] == expected
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
