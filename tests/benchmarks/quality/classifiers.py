"""What a user would fit instead of the classification head: logistic regression with balanced classes.

Each takes the training rows' texts and classes and gives the probability of class 1 of other rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.sparse import hstack
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression


class Rows(NamedTuple):
    """Rows with a class: both texts, and int64 (rows,) classes 0 and 1."""

    queries: list[str]
    items: list[str]
    classes: np.ndarray


class Vectors(NamedTuple):
    """Vectors of both sides of some rows, float32 (rows, width) each."""

    queries: np.ndarray
    items: np.ndarray


def majority(training: Rows, test: Rows) -> np.ndarray:
    """Return the share of class 1 for every row, float64 (rows,)."""
    return np.full(len(test.classes), training.classes.mean())


def on_words(training: Rows, test: Rows, pair: bool) -> np.ndarray:
    """Return probabilities of a regression on TF-IDF of words and pairs of words, float64 (rows,).

    Args:
        pair: whether the item's text counts as well, with a vocabulary of its own.
    """
    known, asked = [], []
    for train_texts, test_texts in ((training.queries, test.queries), (training.items, test.items))[: 1 + pair]:
        words = TfidfVectorizer(sublinear_tf=True, ngram_range=(1, 2), min_df=2)
        known.append(words.fit_transform(train_texts))
        asked.append(words.transform(test_texts))
    return _regression(hstack(known).tocsr(), training.classes, hstack(asked).tocsr())


def on_vectors(training: Vectors, classes: np.ndarray, test: Vectors, pair: bool) -> np.ndarray:
    """Return probabilities of a regression on an encoder's vectors, float64 (rows,).

    Args:
        classes: of the training rows, int64.
        pair: whether the item counts as well: by its vector, and by its product with the query's.
    """
    known, asked = (
        np.concatenate([query, item, query * item], axis=1) if pair else query for query, item in (training, test)
    )
    return _regression(known, classes, asked)


def _regression(known: object, classes: np.ndarray, asked: object) -> np.ndarray:
    model = LogisticRegression(class_weight="balanced", max_iter=2000)
    return model.fit(known, classes).predict_proba(asked)[:, 1]
