"""Quality numbers: ranking of the own item among a corpus, and two-class classification.

Names and definitions are the field's: recall@k (one relevant item per query), MRR@10, nDCG@10, accuracy, macro F1, AUC.
"""

from collections.abc import Callable

import numpy as np

CHUNK_QUERIES = 512
CHUNK_SCORES = 2**24  # in memory at once, 64 MiB; against a larger corpus a chunk has fewer queries


def ranks_of_targets(
    queries: np.ndarray, corpus: np.ndarray, targets: np.ndarray, share: tuple[int, int] = (0, 1)
) -> np.ndarray:
    """Return the rank of each query's own item by cosine among all items of the corpus, int64 (queries,), from 1.

    An item with an equal score ranks before the own item, so that a collapsed model scores badly, not perfectly; so
    does every item if a score is NaN.

    Args:
        queries: float32 (queries, width), unit vectors.
        corpus: float32 (items, width), unit vectors.
        targets: int64 (queries,), row of the own item in the corpus.
        share: this worker's number and how many there are: each ranks some of the queries, the others' ranks are 0.
            The chunks, and so the numbers, are the same for any number of workers.
    """
    ranks = np.zeros(len(queries), dtype=np.int64)
    rows = max(1, min(CHUNK_QUERIES, CHUNK_SCORES // max(1, len(corpus))))
    index, world = share
    for start in range(0, len(queries), rows)[index::world]:
        part = slice(start, start + rows)
        scores = queries[part] @ corpus.T
        own = scores[np.arange(len(scores)), targets[part]]
        ranks[part] = (~(scores < own[:, None])).sum(axis=1)
    return ranks


def _auc(classes: np.ndarray, probabilities: np.ndarray) -> float | None:
    """Return the area under the ROC curve; None where only one of the classes is there."""
    from sklearn.metrics import roc_auc_score  # takes two seconds to load, with pandas and scipy

    return float(roc_auc_score(classes, probabilities)) if len(np.unique(classes)) == 2 else None


def _accuracy(classes: np.ndarray, probabilities: np.ndarray) -> float:
    return float((_predicted(probabilities) == classes).mean())


def _macro_f1(classes: np.ndarray, probabilities: np.ndarray) -> float:
    """Return the mean of the two classes' F1; that of a class neither there nor predicted is 0."""
    from sklearn.metrics import f1_score

    predicted = _predicted(probabilities)
    return float(f1_score(classes, predicted, labels=[0, 1], average="macro", zero_division=0.0))  # type: ignore[arg-type]


def _predicted(probabilities: np.ndarray) -> np.ndarray:
    return (probabilities >= 0.5).astype(np.int64)


# One entry for each metric of configs/schema/metrics.py: from ranks to each query's value, of which the mean is taken.
RANKING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "recall@1": lambda ranks: ranks <= 1,
    "recall@10": lambda ranks: ranks <= 10,
    "mrr@10": lambda ranks: np.where(ranks <= 10, 1.0 / ranks, 0.0),
    "ndcg@10": lambda ranks: np.where(ranks <= 10, 1.0 / np.log2(ranks + 1), 0.0),
}
# From classes and probabilities of class 1 to a value; None where it is not defined.
CLASSIFICATION: dict[str, Callable[[np.ndarray, np.ndarray], float | None]] = {
    "accuracy": _accuracy,
    "macro_f1": _macro_f1,
    "auc": _auc,
}


def retrieval_metrics(ranks: np.ndarray) -> dict[str, float]:
    """Return means over the queries, from int64 (queries,) ranks; empty for no queries."""
    return {name: float(each(ranks).mean()) for name, each in RANKING.items()} if len(ranks) else {}


def classification_metrics(classes: np.ndarray, probabilities: np.ndarray) -> dict[str, float]:
    """Return metrics of classes, int64 (rows,), and probabilities of class 1, float (rows,); AUC if both are there."""
    if not len(classes):
        return {}
    found = {name: measure(classes, probabilities) for name, measure in CLASSIFICATION.items()}
    return {name: value for name, value in found.items() if value is not None}
