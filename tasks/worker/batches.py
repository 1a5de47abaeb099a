"""The batch plan and the batches: static shapes from a short ladder, known before training starts.

The plan is a pure function of token lengths, seed and global batch, the same whatever the number of workers. The
step number alone locates the next batch, so a resumed run neither replays nor skips one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from configs.schema import Shape
from tasks.worker.features import FeatureArrays
from tasks.worker.job import Rank
from tasks.worker.model import Texts
from tasks.worker.tokens import TokenLists

PADDING = -1


@dataclass(frozen=True)
class PlannedBatch:
    """One global batch: its rung of the ladder and int64 (batch_rows,) row numbers, PADDING where it is not full."""

    shape: Shape
    rows: np.ndarray


@dataclass(frozen=True)
class Pairs:
    """All training rows of a run in memory, as arrays of the same length.

    `item_key` int64 is equal for rows about one item; `pair` float32 is 1 where query and item belong together;
    `label_class` int64 is 0, 1 or -1 for unlabelled.
    """

    query: TokenLists
    item: TokenLists
    query_features: FeatureArrays
    item_features: FeatureArrays
    item_key: np.ndarray
    pair: np.ndarray
    label_class: np.ndarray

    def __len__(self) -> int:
        return len(self.query)


@dataclass(frozen=True)
class Batch:
    """One worker's part of a global batch, B rows in all and b = B / world here; static shapes throughout."""

    query: Texts  # (b, Tq)
    item: Texts  # (b, Ti)
    label_class: torch.Tensor  # int64 (b,)
    pair: torch.Tensor  # float32 (b,): 1 where the row counts for the contrastive loss
    excluded: torch.Tensor  # bool (b, B): items that are no negatives for a query: its own item again, or padding
    position: torch.Tensor  # int64 (b,): where each row's own item is among the B
    pairs_in_all: torch.Tensor  # float32 (): rows of the global batch that count for the contrastive loss
    labels_in_all: torch.Tensor  # float32 (): rows of the global batch with a class

    def to(self, device: torch.device) -> Batch:
        moved = {name: value.to(device) for name, value in vars(self).items()}
        return Batch(**moved)


def plan_batches(
    query_lengths: np.ndarray,
    item_lengths: np.ndarray,
    shapes: Sequence[Shape],
    batch_rows: int,
    epochs: int,
    seed: int,
) -> list[PlannedBatch]:
    """The global batches of a run, in order.

    Each row belongs to the first rung that holds both its texts, or the last, which cuts them. Per epoch the rows are
    shuffled, sorted by rung (the shuffle decides within one), cut into batches, and the batches shuffled. A batch takes
    the largest rung among its rows, and only the last batch of an epoch is padded.
    """
    rungs = rung_of(query_lengths, item_lengths, shapes)
    plan: list[PlannedBatch] = []
    for epoch in range(epochs):
        random = np.random.default_rng([seed, epoch])
        order = random.permutation(len(rungs))
        order = order[np.argsort(rungs[order], kind="stable")]
        starts = np.arange(0, len(order), batch_rows)
        for start in random.permutation(starts):
            rows = order[start : start + batch_rows]
            shape = shapes[int(rungs[rows].max())]
            plan.append(PlannedBatch(shape, np.pad(rows, (0, batch_rows - len(rows)), constant_values=PADDING)))
    return plan


def rung_of(query_lengths: np.ndarray, item_lengths: np.ndarray, shapes: Sequence[Shape]) -> np.ndarray:
    """int64 (rows,): the first rung that holds both lengths, or the last one."""
    rung = np.full(len(query_lengths), len(shapes) - 1, dtype=np.int64)
    for index in range(len(shapes) - 2, -1, -1):
        fits = (query_lengths <= shapes[index].query) & (item_lengths <= shapes[index].item)
        rung[fits] = index
    return rung


def make_batch(pairs: Pairs, planned: PlannedBatch, rank: Rank) -> Batch:
    """This worker's consecutive part of a planned batch, as tensors on the host."""
    everyone = planned.rows
    part = len(everyone) // rank.world
    mine = slice(rank.index * part, (rank.index + 1) * part)
    rows = everyone[mine]
    real = everyone >= 0
    pair = np.where(real, pairs.pair[everyone], 0.0).astype(np.float32)
    label_class = np.where(real, pairs.label_class[everyone], -1)
    key = pairs.item_key[everyone]
    position = np.arange(len(everyone))[mine]
    excluded = (key[mine, None] == key[None, :]) | ~real[None, :]
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
