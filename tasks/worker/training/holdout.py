"""The holdout as arrays, and a model's metrics on it: the same code in the training loop and in evaluate."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from tasks.data.rows import ITEM, ITEM_ID, QUERY, distinct_items
from tasks.worker.accelerators import Accelerator
from tasks.worker.model.embed import EmbedSettings, classify, embed
from tasks.worker.model.features import FeatureArrays, encode_features
from tasks.worker.model.tokens import TokenLists, tokenize
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.metrics import classification_metrics, ranks_of_targets, retrieval_metrics
from tasks.worker.training.pairs import label_classes, pair_mask


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


def make_holdout(rows: pa.Table, items: pa.Table, parts: ModelParts, config: Config) -> Holdout:
    """Return the holdout: `rows` whose items are to be found among `items`, of which one row per item is kept."""
    corpus = distinct_items(items)
    row_of = {item_id: row for row, item_id in enumerate(corpus[ITEM_ID].to_pylist())}
    pad = parts.model.pad
    # As long as the texts served, not those trained; a champion may have been made for shorter texts.
    longest = min(config.infer.token_rungs[-1], parts.encoder_config.max_position_embeddings)
    return Holdout(
        query=tokenize(parts.tokenizer, rows[QUERY].to_pylist(), longest, pad),
        query_features=encode_features(parts.features, rows, "query"),
        corpus=tokenize(parts.tokenizer, corpus[ITEM].to_pylist(), longest, pad),
        corpus_features=encode_features(parts.features, corpus, "item"),
        target=np.array([row_of[item_id] for item_id in rows[ITEM_ID].to_pylist()], dtype=np.int64),
        pair=pair_mask(rows, config.heads),
        label_class=label_classes(rows, config.heads),
    )


def judge(
    parts: ModelParts,
    holdout: Holdout,
    accelerator: Accelerator,
    settings: EmbedSettings,
    progress: Callable[[int, int], None] | None = None,
) -> Judged:
    """Embed both sides and rank; every worker embeds a part and gets the whole answer."""
    model = parts.model
    queries = embed(model, accelerator, holdout.query, holdout.query_features, settings)
    corpus = embed(model, accelerator, holdout.corpus, holdout.corpus_features, settings, progress=progress)
    probabilities = None
    if model.classifier is not None:
        probabilities = classify(model, accelerator, queries, corpus[holdout.target], settings)
    return Judged(ranks_of_targets(queries, corpus, holdout.target), probabilities)


def sample_holdout(held: pa.Table, parts: ModelParts, config: Config) -> Holdout:
    """Return the newest `train.evaluate_rows` holdout rows, to be found among their own items."""
    newest = held.slice(max(0, held.num_rows - config.train.evaluate_rows))
    return make_holdout(newest, newest, parts, config)
