"""The holdout as arrays, and a model's metrics on it: the same code in the training loop and in evaluate."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import torch

from configs.schema.config import Config
from tasks.data.rows import ITEM, ITEM_ID, QUERY, distinct_items
from tasks.measures.row_metrics import classification_metrics, retrieval_metrics
from tasks.worker.accelerators import Accelerator
from tasks.worker.model.embed import EmbedSettings, classify, embed
from tasks.worker.model.features import FeatureArrays, encode_features
from tasks.worker.model.tokens import TokenLists, tokenize
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.pairs import label_classes, pair_mask
from tasks.worker.training.ranks import ranks_of_targets


@dataclass(frozen=True)
class Holdout:
    """Holdout rows against a corpus of items, tokenised for one model."""

    query: TokenLists
    query_features: FeatureArrays
    corpus: TokenLists
    corpus_features: FeatureArrays
    target: np.ndarray  # int64 (rows,): each row's own item in the corpus
    pair: np.ndarray  # bool (rows,): rows that count for retrieval
    label_class: np.ndarray  # int64 (rows,): 0, 1, or -1


@dataclass(frozen=True)
class Judged:
    """A model's answer for each row: `ranks` int64 (rows,) from 1, `probabilities` float32 (rows,) of class 1."""

    ranks: np.ndarray
    probabilities: np.ndarray | None

    def metrics(self, holdout: Holdout, among: np.ndarray | None = None) -> dict[str, float]:
        """Return all metrics over the rows, or over those where the bool array `among` is true."""
        rows = np.ones(len(self.ranks), dtype=bool) if among is None else among
        found = retrieval_metrics(self.ranks[rows & holdout.pair])
        if self.probabilities is not None:
            known = rows & (holdout.label_class >= 0)
            found |= classification_metrics(holdout.label_class[known], self.probabilities[known])
        return found


@dataclass(frozen=True)
class KnownVectors:
    """Vectors of some items of a corpus: bool `which` (items,), and float32 `vectors` (items, width)."""

    which: np.ndarray
    vectors: np.ndarray


def make_holdout(rows: pa.Table, corpus: pa.Table, parts: ModelParts, config: Config) -> Holdout:
    """Return the holdout: `rows` whose items are to be found among those of `corpus`, which has one row per item."""
    row_of = {item_id: row for row, item_id in enumerate(corpus[ITEM_ID].to_pylist())}
    query, query_features = side_of(rows, QUERY, parts, config)
    items, item_features = side_of(corpus, ITEM, parts, config)
    return Holdout(
        query=query,
        query_features=query_features,
        corpus=items,
        corpus_features=item_features,
        target=np.array([row_of[item_id] for item_id in rows[ITEM_ID].to_pylist()], dtype=np.int64),
        pair=pair_mask(rows, config.heads),
        label_class=label_classes(rows, config.heads),
    )


def side_of(
    rows: pa.Table, text: Literal["query", "item"], parts: ModelParts, config: Config
) -> tuple[TokenLists, FeatureArrays]:
    """Return one side of the rows as input of a model, by the name of its column with the text."""
    # As long as the texts served, not those trained; a champion may have been made for shorter texts.
    longest = min(config.infer.token_rungs[-1], parts.encoder_config.max_position_embeddings)
    tokens = tokenize(parts.tokenizer, rows[text].to_pylist(), longest, parts.model.pad)
    return tokens, encode_features(parts.features, rows, text)


def judge(
    parts: ModelParts,
    holdout: Holdout,
    accelerator: Accelerator,
    settings: EmbedSettings,
    known: KnownVectors | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Judged:
    """Embed both sides and rank; every worker does a part of both and gets the whole answer.

    Args:
        known: vectors of the model that are there already; those items are not embedded.
    """
    model = parts.model
    queries = embed(model, accelerator, holdout.query, holdout.query_features, settings)
    left = None if known is None else np.flatnonzero(~known.which)
    corpus = embed(model, accelerator, holdout.corpus, holdout.corpus_features, settings, progress=progress, only=left)
    if known is not None:
        corpus[known.which] = known.vectors[known.which]
    probabilities = None
    if model.classifier is not None:
        probabilities = classify(model, accelerator, queries, corpus[holdout.target], settings)
    rank = accelerator.rank
    ranks = torch.from_numpy(ranks_of_targets(queries, corpus, holdout.target, (rank.index, rank.world)))
    return Judged(accelerator.sum(ranks).numpy(), probabilities)


def sample_holdout(held: pa.Table, parts: ModelParts, config: Config) -> Holdout:
    """Return the holdout of the training loop: rows to be found among their own items."""
    return make_holdout(held, distinct_items(held), parts, config)
