"""The batch plan and the batches: static shapes from a short ladder, known before training starts.

The plan is a pure function of token lengths, seed and global batch, the same for any number of workers. The step number
alone locates the next batch, so a resumed run neither repeats nor skips a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from configs.schema.config import Config
from configs.schema.training import Ladder, Shape
from tasks.foundation.errors import CodeError
from tasks.worker.model.embedding_model import Texts
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.tokens import TokenLists
from tasks.worker.process.job import Rank
from tasks.worker.training.pair_arrays import Pairs

PADDING = -1
SHUFFLE_TOKENS = 2.0


@dataclass(frozen=True)
class PlannedBatch:
    """One global batch: its rung of the ladder and int64 (batch_rows,) row numbers, PADDING if not full."""

    shape: Shape
    rows: np.ndarray


@dataclass(frozen=True)
class Batch:
    """One worker's part of a global batch, B rows in all and b = B / world here; static shapes throughout."""

    query: Texts  # (b, Tq)
    item: Texts  # (b, Ti)
    label_class: torch.Tensor  # int64 (b,)
    pair: torch.Tensor  # float32 (b,): 1 where the row counts for the contrastive loss
    excluded: torch.Tensor  # bool (b, B): items that are no negatives of a query: its own, known positives, padding
    position: torch.Tensor  # int64 (b,): where each row's own item is among the B
    pairs_in_all: torch.Tensor  # float32 (): rows of the global batch that count for the contrastive loss
    labels_in_all: torch.Tensor  # float32 (): rows of the global batch with a class

    def to(self, device: torch.device) -> Batch:
        moved = {name: value.to(device) for name, value in vars(self).items()}
        return Batch(**moved)


def plan_batches(
    query_lengths: np.ndarray,
    item_lengths: np.ndarray,
    ladder: Ladder,
    batch_rows: int,
    epochs: int,
    seed: int,
) -> list[PlannedBatch]:
    """Return the global batches of a run, in order; every row once per epoch, only the last batch sorted is padded.

    In each epoch the rows are sorted by the rung of their query and, within a rung, by the length of their item
    (shuffled a little, so that epochs group rows differently), cut into batches, and the batches are shuffled. This
    keeps padding small: a batch has the smallest shape of the ladder that holds its rows.

    Args:
        query_lengths: int64 (rows,), tokens; those beyond the last rung are cut.
        item_lengths: int64 (rows,), likewise.
    """
    query_rungs, item_rungs = np.array(ladder.query), np.array(ladder.item)
    query_rung = np.searchsorted(query_rungs, np.minimum(query_lengths, query_rungs[-1]))
    item_lengths = np.minimum(item_lengths, item_rungs[-1])
    # Ascending in one rung, descending in the next: if a batch spans two rungs, its items have similar lengths.
    direction = np.where(query_rung % 2 == 0, 1, -1)
    plan: list[PlannedBatch] = []
    for epoch in range(epochs):
        random = np.random.default_rng([seed, epoch])
        shuffled = item_lengths + random.uniform(-SHUFFLE_TOKENS, SHUFFLE_TOKENS, len(item_lengths))
        order = np.lexsort((direction * shuffled, query_rung))
        for start in random.permutation(np.arange(0, len(order), batch_rows)):
            rows = order[start : start + batch_rows]
            shape = Shape(
                query=int(query_rungs[query_rung[rows].max()]),
                item=int(item_rungs[np.searchsorted(item_rungs, item_lengths[rows].max())]),
            )
            plan.append(PlannedBatch(shape, np.pad(rows, (0, batch_rows - len(rows)), constant_values=PADDING)))
    return plan


def make_batch(pairs: Pairs, planned: PlannedBatch, rank: Rank) -> Batch:
    """Return this worker's consecutive part of a planned batch, as tensors on the host."""
    whole = planned.rows
    part = len(whole) // rank.world
    mine = slice(rank.index * part, (rank.index + 1) * part)
    rows = whole[mine]
    real = whole >= 0
    pair = np.where(real, pairs.pair[whole], 0.0).astype(np.float32)
    label_class = np.where(real, pairs.label_class[whole], -1)
    position = np.arange(len(whole))[mine]
    excluded = np.broadcast_to(~real, (part, len(whole))).copy()
    for key, positives in zip((pairs.item_key, pairs.text_key), pairs.positives, strict=True):
        batch_key = key[whole]
        excluded |= batch_key[mine, None] == batch_key[None, :]
        excluded |= positives.among(pairs.query_key[rows], batch_key)
    excluded[np.arange(part), position] = False
    return Batch(
        query=_texts(pairs.query, pairs.query_features, rows, planned.shape.query),
        item=_texts(pairs.item, pairs.item_features, rows, planned.shape.item),
        label_class=torch.from_numpy(label_class[mine]),
        pair=torch.from_numpy(pair[mine]),
        excluded=torch.from_numpy(excluded),
        position=torch.from_numpy(position),
        pairs_in_all=torch.tensor(float(pair.sum())),
        labels_in_all=torch.tensor(float((label_class >= 0).sum())),
    )


def _texts(tokens: TokenLists, features: FeatureArrays, rows: np.ndarray, width: int) -> Texts:
    real = (rows >= 0)[:, None]
    return Texts(
        ids=torch.from_numpy(tokens.padded(rows, width)),
        numeric=torch.from_numpy(np.where(real, features.numeric[rows], 0).astype(np.float32)),
        categorical=torch.from_numpy(np.where(real, features.categorical[rows], 0).astype(np.int64)),
    )


def plan_for(
    config: Config, first_step: int, query_lengths: np.ndarray, item_lengths: np.ndarray
) -> list[PlannedBatch]:
    """Return the batch plan of a run; the first step is part of the seed, so that runs shuffle differently.

    Raises:
        CodeError: a batch has a shape that is not on the ladder; at run time it would need a recompilation.
    """
    train = config.train
    seed = config.seed + first_step
    plan = plan_batches(query_lengths, item_lengths, train.shapes, train.batch_rows, train.epochs, seed)
    for number, batch in enumerate(plan):
        if batch.shape not in train.shapes.shapes or len(batch.rows) != train.batch_rows:
            raise CodeError(
                f"batch {number} of the plan has {len(batch.rows)} rows of {batch.shape.query} x {batch.shape.item} "
                f"tokens, which is not on the ladder of train.shapes with train.batch_rows {train.batch_rows}"
            )
    return plan
