"""Quality numbers: ranking of the own item among a corpus, and two-class classification.

Names and definitions are the field's: recall@k (one relevant item per query), MRR@10, nDCG@10, accuracy, macro F1, AUC.
"""

from __future__ import annotations

import numpy as np
from sklearn.metrics import f1_score, roc_auc_score

CHUNK_QUERIES = 512


def ranks_of_targets(queries: np.ndarray, corpus: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """int64 (queries,), from 1: the place of each query's own item by cosine among all items of the corpus.

    An item that scores the same stands ahead of the own one, so that a collapsed model scores badly, not perfectly;
    and so does every item where a score is NaN.

    Args:
        queries: float32 (queries, width), unit vectors.
        corpus: float32 (items, width), unit vectors.
        targets: int64 (queries,), row of the own item in the corpus.
    """
    ranks = np.empty(len(queries), dtype=np.int64)
    for start in range(0, len(queries), CHUNK_QUERIES):
        part = slice(start, start + CHUNK_QUERIES)
        scores = queries[part] @ corpus.T
        own = scores[np.arange(len(scores)), targets[part]]
        ranks[part] = (~(scores < own[:, None])).sum(axis=1)
    return ranks


def retrieval_metrics(ranks: np.ndarray) -> dict[str, float]:
    """Means over the queries; none for no queries."""
    if not len(ranks):
        return {}
    top = ranks <= 10
    return {
        "recall@1": float((ranks <= 1).mean()),
        "recall@10": float(top.mean()),
        "mrr@10": float(np.where(top, 1.0 / ranks, 0.0).mean()),
        "ndcg@10": float(np.where(top, 1.0 / np.log2(ranks + 1), 0.0).mean()),
    }


def classification_metrics(classes: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """From int64 (rows,) true classes and float (rows,) probabilities of class 1; AUC only where both classes are."""
    if not len(classes):
        return {}
    predicted = (probabilities >= 0.5).astype(np.int64)
    metrics = {
        "accuracy": float((predicted == classes).mean()),
        "macro_f1": _macro_f1(classes, predicted),
    }
    if len(np.unique(classes)) == 2:
        metrics["auc"] = float(roc_auc_score(classes, probabilities))
    return metrics


def _macro_f1(classes: np.ndarray, predicted: np.ndarray) -> float:
    """The mean of the two classes' F1; that of a class neither there nor predicted is 0."""
    return float(f1_score(classes, predicted, labels=[0, 1], average="macro", zero_division=0.0))  # type: ignore[arg-type]
