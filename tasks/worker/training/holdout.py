"""The holdout as arrays, and a model's metrics on it; used by the training loop and by evaluate."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pyarrow as pa
import torch

from configs.schema.config import Config
from configs.schema.model import LabelHead
from tasks.data.label_columns import label_classes, label_values, pair_mask
from tasks.data.pretrained import positions_for_text
from tasks.data.query_places import hash_queries
from tasks.data.rows import ITEM, ITEM_ID, QUERY, distinct_items
from tasks.quality.label_metrics import label_metrics
from tasks.quality.row_metrics import metrics_of
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model.embed import EmbedSettings, embed
from tasks.worker.model.features import FeatureArrays, encode_features
from tasks.worker.model.label_heads import classify, label_answers
from tasks.worker.model.ranks import rank_targets
from tasks.worker.model.relevant import Relevant, find_relevant, number_texts
from tasks.worker.model.tokens import TokenLists, prompts_of, tokenize
from tasks.worker.training.checkpoint import ModelParts


@dataclass(frozen=True)
class Holdout:
    """Holdout rows against a corpus of items, tokenised for one model."""

    query: TokenLists
    query_features: FeatureArrays
    corpus: TokenLists
    corpus_features: FeatureArrays
    target: np.ndarray  # int64 (rows,): each row's own item in the corpus
    pair: np.ndarray  # bool (rows,): True if the row counts for retrieval
    label_class: np.ndarray  # int64 (rows,): 0, 1, or -1 for unlabelled
    relevant: Relevant  # other relevant items of each row, which are ignored when ranking
    competitors: np.ndarray  # int32 (rows,): items that each row's own item is ranked among, without itself
    heads: dict[str, LabelHead] = field(default_factory=dict)  # the label heads
    labels: dict[str, np.ndarray] = field(default_factory=dict)  # target per label head, float64 (rows,), NaN: unknown


@dataclass(frozen=True)
class HoldoutVectors:
    """A model's unit vectors: `queries` float32 (rows, width), `corpus` float32 (items, width)."""

    queries: np.ndarray
    corpus: np.ndarray


@dataclass(frozen=True)
class HoldoutResults:
    """A model's result for each row.

    `ranks` int64 (rows,) from 1, `probabilities` float32 (rows,) of class 1, `predicted` int8 (rows,) the predicted
    class, `losses` float32 (rows,) in nats; `says` float32 (rows,) the prediction of each label head.
    """

    ranks: np.ndarray
    probabilities: np.ndarray | None
    predicted: np.ndarray | None
    losses: np.ndarray | None = None
    says: dict[str, np.ndarray] = field(default_factory=dict)

    def metrics(self, holdout: Holdout, among: np.ndarray | None = None) -> dict[str, float]:
        """Return all metrics over the rows, or over the subset in the mask `among`, bool (rows,)."""
        rows = np.ones(len(self.ranks), dtype=bool) if among is None else among
        found = metrics_of(
            ranks=self.ranks[rows],
            competitors=holdout.competitors[rows],
            losses=None if self.losses is None else self.losses[rows],
            pair=holdout.pair[rows],
            label_class=holdout.label_class[rows],
            probabilities=None if self.probabilities is None else self.probabilities[rows],
            predicted=None if self.predicted is None else self.predicted[rows],
        )
        for head, says in self.says.items():
            found |= label_metrics(head, holdout.labels[head][rows], says[rows])
        return found


@dataclass(frozen=True)
class KnownVectors:
    """Vectors of some items of a corpus: bool `which` (items,), and float32 `vectors` (items, width)."""

    which: np.ndarray
    vectors: np.ndarray


def make_holdout(
    rows: pa.Table, corpus: pa.Table, parts: ModelParts, config: Config, relevant: Relevant | None = None
) -> Holdout:
    """Return the holdout: the items of `rows` are searched in `corpus`, which has one row per item.

    Args:
        relevant: relevant items by all known pairs; None: by the pairs among the rows themselves.
    """
    target, pair = find_places(corpus, rows), pair_mask(rows, config.heads)
    if relevant is None:
        keys = hash_queries(rows[QUERY].to_pylist())
        relevant = find_relevant(keys, number_texts(corpus[ITEM].to_pylist()), keys[pair], target[pair])
    query, query_features = encode_side(rows, QUERY, parts, config)
    items, item_features = encode_side(corpus, ITEM, parts, config)
    return Holdout(
        query=query,
        query_features=query_features,
        corpus=items,
        corpus_features=item_features,
        target=target,
        pair=pair,
        label_class=label_classes(rows, config.heads),
        heads=config.heads.of_labels,
        labels={name: label_values(rows, head) for name, head in config.heads.of_labels.items()},
        relevant=relevant,
        competitors=relevant.competitors(target),
    )


def find_places(corpus: pa.Table, rows: pa.Table) -> np.ndarray:
    """Return the place of each row's own item in the corpus, int64 (rows,)."""
    row_of = {item_id: row for row, item_id in enumerate(corpus[ITEM_ID].to_pylist())}
    return np.array([row_of[item_id] for item_id in rows[ITEM_ID].to_pylist()], dtype=np.int64)


def encode_side(
    rows: pa.Table, text: Literal["query", "item"], parts: ModelParts, config: Config
) -> tuple[TokenLists, FeatureArrays]:
    """Return one side of the rows as inputs of its model; `text` names the column."""
    parts = parts.of(text)
    # Truncated like the texts served, not the texts trained on; a champion may have fewer positions.
    positions = positions_for_text(parts.encoder_config.to_dict())
    longest = config.infer.max_tokens if positions is None else min(config.infer.max_tokens, positions)
    prompt = prompts_of(rows, text, parts.model.shape.prompts, parts.features.entity)
    tokens = tokenize(parts.tokenizer, rows[text].to_pylist(), longest, parts.model.pad, prompt)
    return tokens, encode_features(parts.features, rows, text)


def embed_holdout(
    parts: ModelParts,
    holdout: Holdout,
    accelerator: Accelerator,
    settings: EmbedSettings,
    known: KnownVectors | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> HoldoutVectors:
    """Return the vectors of both sides; every worker embeds a part of both and gets all.

    Args:
        known: existing item vectors of this model; they are not made again.
    """
    queries = embed(parts.model, accelerator, holdout.query, holdout.query_features, settings)
    left, model = None if known is None else np.flatnonzero(~known.which), parts.of("item").model
    corpus = embed(model, accelerator, holdout.corpus, holdout.corpus_features, settings, progress=progress, only=left)
    if known is not None:
        corpus[known.which] = known.vectors[known.which]
    return HoldoutVectors(queries, corpus)


def judge_vectors(
    parts: ModelParts,
    holdout: Holdout,
    embedded: HoldoutVectors,
    accelerator: Accelerator,
    settings: EmbedSettings,
    scale: float | None = None,
) -> HoldoutResults:
    """Classify and rank; every worker ranks a part and gets the whole result.

    Args:
        scale: inverse temperature of the losses; see `rank_targets`.
    """
    queries, corpus, rank = embedded.queries, embedded.corpus, accelerator.rank
    probabilities = predicted = None
    if parts.model.classifier is not None:
        probabilities = classify(parts.model, accelerator, queries, corpus[holdout.target])
        predicted = (probabilities >= parts.model.threshold).astype(np.int8)
    share = (rank.index, rank.world)
    device = accelerator.ranking_device
    ranks, losses = rank_targets(queries, corpus, holdout.target, share, holdout.relevant, scale, device)
    return HoldoutResults(
        accelerator.sum(torch.from_numpy(ranks)).numpy(),
        probabilities,
        predicted,
        None if losses is None else accelerator.sum(torch.from_numpy(losses)).numpy(),
        label_answers(parts.model, holdout.heads, accelerator, queries, corpus[holdout.target]),
    )


def judge(parts: ModelParts, holdout: Holdout, accelerator: Accelerator, settings: EmbedSettings) -> HoldoutResults:
    """Embed both sides, classify and rank; the workers share the work, and each gets the whole result."""
    return judge_vectors(parts, holdout, embed_holdout(parts, holdout, accelerator, settings), accelerator, settings)


def sample_holdout(held: pa.Table, parts: ModelParts, config: Config) -> Holdout:
    """Return the holdout of the training loop, whose corpus is the rows' own items."""
    return make_holdout(held, distinct_items(held), parts, config)
