import numpy as np
import pytest

from tasks.worker.training import ranks as training_ranks
from tasks.worker.training.ranks import CHUNK_QUERIES, ranks_of_targets


def unit(*degrees: float) -> np.ndarray:
    radians = np.radians(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def test_ranks_of_known_angles():
    corpus = unit(0, 30, 60, 90)
    queries = unit(5, 5, 85, 50)
    assert ranks_of_targets(queries, corpus, np.array([0, 2, 2, 2])).tolist() == [1, 3, 2, 1]


def test_an_item_with_an_equal_score_ranks_first():
    corpus = unit(0, 0, 90)
    assert ranks_of_targets(unit(0), corpus, np.array([1])).tolist() == [2]


@pytest.mark.parametrize("value", [0.5, np.nan])
def test_a_collapsed_or_broken_model_scores_worst(value: float):
    vectors = np.full((20, 4), value, dtype=np.float32)
    assert ranks_of_targets(vectors, vectors, np.arange(20)).tolist() == [20] * 20


@pytest.mark.parametrize("scores_at_once", [2**24, 40 * 7, 1])
@pytest.mark.parametrize("workers", [1, 3])
def test_ranks_do_not_depend_on_the_chunks(scores_at_once: int, workers: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(training_ranks, "CHUNK_SCORES", scores_at_once)
    random = np.random.default_rng(0)
    queries, corpus = random.normal(size=(CHUNK_QUERIES + 3, 5)), random.normal(size=(40, 5))
    targets = random.integers(0, 40, len(queries))
    scores = queries @ corpus.T
    expected = [1 + int((row > row[target]).sum()) for row, target in zip(scores, targets, strict=True)]
    parts = [ranks_of_targets(queries, corpus, targets, (index, workers)) for index in range(workers)]
    assert np.sum(parts, axis=0).tolist() == expected
    assert np.count_nonzero(parts, axis=0).tolist() == [1] * len(queries), "each query is ranked by one worker"
