"""Ranks and losses, against plain sorting; and the metrics of ranks, against trec_eval."""

import numpy as np
import pytest
import pytrec_eval
import torch

from tasks.quality.row_metrics import retrieval_metrics
from tasks.worker.model import ranks as training_ranks
from tasks.worker.model.ranks import CHUNK_QUERIES, count_not_below, rank_targets
from tasks.worker.model.relevant import find_relevant


def unit(*degrees: float) -> np.ndarray:
    radians = np.radians(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


def test_ranks_of_known_angles():
    corpus = unit(0, 30, 60, 90)
    queries = unit(5, 5, 85, 50)
    assert rank_targets(queries, corpus, np.array([0, 2, 2, 2])).ranks.tolist() == [1, 3, 2, 1]


def test_an_item_with_an_equal_score_ranks_first():
    corpus = unit(0, 0, 90)
    assert rank_targets(unit(0), corpus, np.array([1])).ranks.tolist() == [2]


@pytest.mark.parametrize("value", [0.5, np.nan])
def test_a_collapsed_or_broken_model_scores_worst(value: float):
    vectors = np.full((20, 4), value, dtype=np.float32)
    assert rank_targets(vectors, vectors, np.arange(20)).ranks.tolist() == [20] * 20


@pytest.mark.parametrize("broken", [False, True])
def test_the_counts_of_parts_add_up_to_that_of_the_whole(broken: bool):
    scores = np.array([[0.5, 0.9, 0.1, 0.5], [0.3, -np.inf, 0.2, 0.4]])
    own = np.array([0.5, 0.35])
    if broken:
        scores[0, 1], own[1] = np.nan, np.nan
    whole = count_not_below(scores, own)
    assert whole.tolist() == ([3, 4] if broken else [3, 1])
    assert (count_not_below(scores[:, :3], own) + count_not_below(scores[:, 3:], own)).tolist() == whole.tolist()


def test_items_that_are_as_right_compete_neither_for_the_rank_nor_for_the_loss():
    corpus, query = unit(0, 10, 20, 30), unit(0)
    # The item at 20 degrees is the row's own; another row pairs the query with that at 0.
    relevant = find_relevant(np.array([7]), np.arange(4), np.array([7, 7]), np.array([2, 0]))
    filtered = rank_targets(query, corpus, np.array([2]), relevant=relevant, scale=10.0)
    assert filtered.ranks.tolist() == [2], "behind the item at 10 degrees alone"
    logits = 10 * np.cos(np.radians([10, 20, 30]))
    assert filtered.losses == pytest.approx([np.log(np.exp(logits).sum()) - logits[1]], rel=1e-5)
    assert rank_targets(query, corpus, np.array([2])).ranks.tolist() == [3]


def test_the_loss_of_a_broken_model_is_no_number():
    vectors = np.full((3, 4), np.nan, dtype=np.float32)
    losses = rank_targets(vectors, vectors, np.arange(3), scale=20.0).losses
    assert losses is not None
    assert np.isnan(losses).all()


@pytest.mark.parametrize("scores_at_once", [2**24, 40 * 7, 1])
@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (3, 1), (1, 4)])
def test_answers_do_not_depend_on_the_chunks(
    scores_at_once: int, workers: int, threads: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    monkeypatch.setattr(training_ranks, "CHUNK_SCORES", scores_at_once)
    random = np.random.default_rng(0)
    queries, corpus = random.normal(size=(CHUNK_QUERIES + 3, 5)), random.normal(size=(40, 5))
    targets = random.integers(0, 40, len(queries))
    scores = queries @ corpus.T
    own = scores[np.arange(len(scores)), targets]
    expected = 1 + (scores > own[:, None]).sum(axis=1)
    parts = [rank_targets(queries, corpus, targets, (index, workers), scale=2.0) for index in range(workers)]
    assert np.sum([part.ranks for part in parts], axis=0).tolist() == expected.tolist()
    ranked = np.count_nonzero([part.ranks for part in parts], axis=0)
    assert ranked.tolist() == [1] * len(queries), "each query is ranked by one worker"
    losses = np.sum([part.losses for part in parts if part.losses is not None], axis=0)
    assert losses == pytest.approx(np.log(np.exp(2 * scores).sum(axis=1)) - 2 * own, rel=1e-5)


QUERIES, ITEMS = 60, 400
NAMES = {"recall_1": "recall@1", "recall_10": "recall@10", "recall_100": "recall@100", "ndcg_cut_10": "ndcg@10"}


def test_the_metrics_are_those_of_trec_eval():
    random = np.random.default_rng(1)
    corpus = random.normal(size=(ITEMS, 6)).astype(np.float32)
    corpus[1::2] = corpus[::2] + random.normal(scale=0.1, size=(ITEMS // 2, 6))  # items with one text are near
    targets = random.integers(0, ITEMS, QUERIES)
    queries = corpus[targets] + random.normal(scale=1.0, size=(QUERIES, 6)).astype(np.float32)
    keys, texts = np.arange(QUERIES) // 3, np.arange(ITEMS) // 2  # three rows a query, two items a text
    scores = queries @ corpus.T
    relevant = find_relevant(keys, texts, keys, targets)
    judged, run = {}, {}
    for row, target in enumerate(targets):
        left_out = {item for item in range(ITEMS) if texts[item] in texts[targets[keys == keys[row]]]} - {target}
        judged[str(row)] = {str(target): 1}
        run[str(row)] = {str(item): float(scores[row, item]) for item in range(ITEMS) if item not in left_out}
    found = pytrec_eval.RelevanceEvaluator(judged, {"recall.1,10,100", "ndcg_cut.10"}).evaluate(run)
    best = {row: dict(sorted(items.items(), key=lambda each: -each[1])[:10]) for row, items in run.items()}
    reciprocal = pytrec_eval.RelevanceEvaluator(judged, {"recip_rank"}).evaluate(best)
    expected = {ours: np.mean([each[theirs] for each in found.values()]) for theirs, ours in NAMES.items()}
    expected["mrr@10"] = np.mean([each["recip_rank"] for each in reciprocal.values()])
    competitors = relevant.competitors(targets)
    assert competitors.tolist() == [len(run[str(row)]) - 1 for row in range(QUERIES)]
    ours = retrieval_metrics(rank_targets(queries, corpus, targets, relevant=relevant).ranks, competitors)
    assert ours == pytest.approx(expected)
    assert 0 < ours["recall@1"] < ours["recall@10"] < ours["recall@100"] < 1
    assert retrieval_metrics(rank_targets(queries, corpus, targets).ranks, competitors) != ours, (
        "the filter matters here"
    )
