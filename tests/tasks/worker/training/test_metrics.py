import math

import numpy as np
import pytest

from tasks.worker.training import metrics as training_metrics
from tasks.worker.training.metrics import CHUNK_QUERIES, classification_metrics, ranks_of_targets, retrieval_metrics


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
    monkeypatch.setattr(training_metrics, "CHUNK_SCORES", scores_at_once)
    random = np.random.default_rng(0)
    queries, corpus = random.normal(size=(CHUNK_QUERIES + 3, 5)), random.normal(size=(40, 5))
    targets = random.integers(0, 40, len(queries))
    scores = queries @ corpus.T
    expected = [1 + int((row > row[target]).sum()) for row, target in zip(scores, targets, strict=True)]
    parts = [ranks_of_targets(queries, corpus, targets, (index, workers)) for index in range(workers)]
    assert np.sum(parts, axis=0).tolist() == expected
    assert np.count_nonzero(parts, axis=0).tolist() == [1] * len(queries), "each query is ranked by one worker"


def test_retrieval_metrics_of_known_ranks():
    metrics = retrieval_metrics(np.array([1, 2, 10, 11]))
    assert metrics["recall@1"] == 0.25
    assert metrics["recall@10"] == 0.75
    assert metrics["mrr@10"] == pytest.approx((1 + 1 / 2 + 1 / 10) / 4)
    assert metrics["ndcg@10"] == pytest.approx((1 + 1 / math.log2(3) + 1 / math.log2(11)) / 4)


def test_classification_metrics_of_known_probabilities():
    metrics = classification_metrics(np.array([1, 1, 1, 0, 0]), np.array([0.9, 0.5, 0.2, 0.6, 0.1]))
    # predicted 1 1 0 1 0: class 1 has precision 2/3 and recall 2/3, class 0 has 1/2 and 1/2
    assert metrics["accuracy"] == pytest.approx(3 / 5)
    assert metrics["macro_f1"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    # of the six pairs of a 1 and a 0, the 1 has the higher probability in four
    assert metrics["auc"] == pytest.approx(4 / 6)


@pytest.mark.parametrize(("cls", "macro_f1"), [(1, 0.5), (0, 0.0)])
def test_a_single_class_has_no_auc(cls: int, macro_f1: float):
    metrics = classification_metrics(np.full(3, cls), np.array([0.9, 0.8, 0.7]))
    assert metrics == {"accuracy": float(cls), "macro_f1": macro_f1}


def test_no_rows_give_no_metrics():
    assert retrieval_metrics(np.array([], dtype=np.int64)) == {}
    assert classification_metrics(np.array([], dtype=np.int64), np.array([])) == {}
