"""Equal, different or not decided, about sides whose true difference is known, and at the edges."""

from __future__ import annotations

import numpy as np
import pytest

from infra.store.directory import DirectoryStore
from tasks.foundation.errors import StoreError
from tasks.laboratory.equivalence import Equivalence, Finding, equivalence, paired_answers
from tests.benchmarks.quality.sides import findings
from tests.support.measures.results import write_answers
from tests.support.workspace.trainings import side

DRAWS = 200
ROWS = 2000
RANKS = np.where(np.arange(ROWS) < 1000, 1, 20)
NOISE = 1e-7 * np.random.default_rng(1).standard_normal(ROWS)
SCORES = np.where(np.arange(ROWS) % 2 == 1, 0.6, 0.4) + 0.1 * np.random.default_rng(2).standard_normal(ROWS)


@pytest.fixture
def store(tmp_path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def test_equally_good_sides_are_seldom_called_different() -> None:
    assert findings(236, 0, 1, DRAWS)[Finding.different] <= 0.05 * DRAWS


def test_sides_three_margins_apart_are_seldom_called_equal_and_large_differences_are_seen() -> None:
    assert findings(236, 3, 1, DRAWS)[Finding.equal] <= 0.05 * DRAWS
    assert findings(1000, 30, 1, 50)[Finding.different] > 40


def compared(store: DirectoryStore, metric: str, other: np.ndarray, scores: np.ndarray = SCORES) -> Equivalence:
    keys = (write_answers(store, "a", RANKS, SCORES), write_answers(store, "b", other, scores))
    rows = paired_answers(store, *([side("cpu", answers=key)] for key in keys))
    return equivalence(metric, [0.5], [0.5], rows)


def test_rounding_of_probabilities_is_the_same_answer_and_more_is_not(store) -> None:
    assert compared(store, "auc", RANKS, SCORES + NOISE).finding is Finding.equal
    assert not compared(store, "auc", RANKS, SCORES + 1e5 * NOISE).same_answers


def test_other_ranks_with_the_same_hits_are_other_answers(store) -> None:
    """No hit differs, but the ranks say that these are two models."""
    assert not compared(store, "recall@10", np.where(RANKS == 1, 2, RANKS)).same_answers
    assert compared(store, "recall@10", RANKS).same_answers


def test_sides_with_other_rows_are_not_paired(store) -> None:
    keys = (write_answers(store, "a", RANKS), write_answers(store, "b", RANKS[:-1]))
    assert paired_answers(store, *([side("cpu", answers=key)] for key in keys)) is None


def test_damaged_answers_name_the_file_and_the_way_out(store) -> None:
    store.write("a", b"no parquet")
    with pytest.raises(StoreError, match=r"/a, .*result\.json"):
        paired_answers(store, [side("cpu", answers="a")], [side("cpu", answers="a")])
