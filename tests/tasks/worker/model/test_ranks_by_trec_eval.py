"""The ranking metrics are those of trec_eval, where items that are as right as the relevant one are not in the run."""

import numpy as np
import pytest
import pytrec_eval

from tasks.quality.row_metrics import retrieval_metrics
from tasks.worker.model.ranks import rank_targets
from tasks.worker.model.relevant import find_relevant

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
