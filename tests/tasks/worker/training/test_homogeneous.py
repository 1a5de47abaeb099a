"""Batches of one group."""

import numpy as np
import pytest

from configs.load import load_config
from tasks.foundation.errors import ConfigError
from tasks.worker.training.plan import PADDING, BatchPlan
from tests.support.workspace.jobs import FEATURES, tiny_config

ROWS, BATCH = 1003, 16
RANDOM = np.random.default_rng(4)
GROUPS = RANDOM.choice([1, 2, 3, 9], ROWS, p=[0.6, 0.3, 0.09, 0.01])
KEY, TOKENS = RANDOM.integers(0, 300, ROWS), RANDOM.integers(4, 60, ROWS)


def plan() -> BatchPlan:
    return BatchPlan(TOKENS, [KEY], BATCH, 2, 7, GROUPS)


def epochs(made: BatchPlan) -> list[list[np.ndarray]]:
    batches = [made.rows(number) for number in range(len(made))]
    real = [rows[rows != PADDING] for rows in batches]
    return [real[: len(real) // 2], real[len(real) // 2 :]]


def test_every_row_is_in_an_epoch_once_and_as_many_batches_as_possible_have_one_group():
    most = sum(count // BATCH for count in np.unique(GROUPS, return_counts=True)[1].tolist())
    for batches in epochs(plan()):
        assert sorted(np.concatenate(batches).tolist()) == list(range(ROWS))
        assert sum(len(set(GROUPS[rows].tolist())) == 1 for rows in batches) >= most


def test_groups_come_in_random_order_and_epochs_differ():
    first, second = epochs(plan())
    order = [int(GROUPS[rows][0]) for rows in first]
    assert sorted(order) != order
    alike = {frozenset(rows.tolist()) for rows in first} & {frozenset(rows.tolist()) for rows in second}
    assert not alike


def test_rows_with_one_key_are_kept_apart_within_a_group():
    for batches in epochs(plan()):
        large = [rows for rows in batches if set(GROUPS[rows].tolist()) in ({1}, {2})]  # with others to exchange with
        assert sum(len(rows) - len(set(KEY[rows].tolist())) for rows in large) <= 2, "at random, more than twenty"


def test_a_column_that_is_no_categorical_feature_is_refused():
    assert tiny_config(*FEATURES, "train.batch_by=locale").train.batch_by == "locale"
    with pytest.raises(ConfigError, match=r"train\.batch_by brand is not in features\.categorical \(locale, gift\)"):
        tiny_config(*FEATURES, "train.batch_by=brand")
    assert load_config().train.batch_by is None
