"""The batches of a run, of one static shape that is known before training starts.

A batch has a fixed number of pairs, whose queries and items are packed into a fixed number of sequences. `plan.py` says
which rows a batch has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from configs.schema.config import Config
from tasks.foundation.errors import ConfigError
from tasks.worker.model.embedding_model import Texts
from tasks.worker.model.features import joined_features
from tasks.worker.model.packing import pack
from tasks.worker.process.job import Rank
from tasks.worker.training.pair_arrays import Pairs
from tasks.worker.training.plan import Plan, parts_of

SAMPLED_ROWS = 16_384  # the first rows of a run, by which the shape is chosen: warmup must find the same one, fast
SAMPLED_BATCHES = 256


@dataclass(frozen=True)
class BatchShape:
    """One worker's part of every batch: pairs, and the sequences that they are packed into, with their tokens."""

    pairs: int
    sequences: int
    tokens: int


@dataclass(frozen=True)
class Batch:
    """One worker's part of a global batch, B rows in all and b = B / world here; static shapes throughout."""

    texts: Texts  # 2b texts: first the queries, then the items
    label_class: torch.Tensor  # int64 (b,)
    pair: torch.Tensor  # float32 (b,): 1 where the row counts for the contrastive loss
    excluded: torch.Tensor  # bool (b, B): items that are no negatives of a query: its own, known positives, padding
    position: torch.Tensor  # int64 (b,): where each row's own item is among the B
    pairs_in_all: torch.Tensor  # float32 (): rows of the global batch that count for the contrastive loss
    labels_in_all: torch.Tensor  # float32 (): rows of the global batch with a class

    def to(self, device: torch.device) -> Batch:
        moved = {name: value.to(device) for name, value in vars(self).items()}
        return Batch(**moved)


def plan_for(config: Config, first_step: int, pairs: Pairs) -> Plan:
    """Return the batch plan of a run; the first step is part of the seed, so that runs shuffle differently."""
    return _plan_of_first(len(pairs), config, first_step, pairs)


def _plan_of_first(rows: int, config: Config, first_step: int, pairs: Pairs) -> Plan:
    """Return the batch plan of the first rows alone."""
    train = config.train
    keys = [key[:rows] for key in (pairs.item_key, pairs.text_key, pairs.query_key)]
    return Plan(pairs.tokens[:rows], keys, train.batch_rows, train.epochs, config.seed + first_step)


def shape_for(config: Config, first_step: int, pairs: Pairs, world: int) -> BatchShape:
    """Return the shape of every batch: as many sequences as the batches of the run's first rows need, by packing them.

    A text that later finds no room loses its last tokens.

    Raises:
        ConfigError: `train.sequences` are far too few for the texts.
    """
    train = config.train
    plan = _plan_of_first(SAMPLED_ROWS, config, first_step, pairs)
    needed = largest = 1
    for number in np.unique(np.linspace(0, len(plan) - 1, SAMPLED_BATCHES, dtype=np.int64)).tolist():
        for rows in parts_of(plan.rows(number), plan.tokens, world):
            real = rows[rows >= 0]
            lengths = np.concatenate([pairs.query.lengths_of(real), pairs.item.lengths_of(real)])
            needed = max(needed, pack(lengths, train.sequence_tokens).sequences)
            largest = max(largest, int(lengths.sum()))
    shape = BatchShape(train.batch_rows // world, _rounded_up(needed), train.sequence_tokens)
    if train.sequences is None:
        return shape
    given = train.sequences // world
    if given * train.sequence_tokens < largest:
        raise ConfigError(
            f"train.sequences {train.sequences}: a batch has up to {largest * world} tokens, and they hold "
            f"{train.sequences * train.sequence_tokens}; give at least {shape.sequences * world}, or null"
        )
    return BatchShape(shape.pairs, given, shape.tokens)


def _rounded_up(sequences: int) -> int:
    """Return a number at most 1/64 larger, one of few: spans whose texts are about as long share compiled graphs."""
    step = 1 << max(0, sequences.bit_length() - 7)
    return -(-sequences // step) * step


def make_batch(pairs: Pairs, whole: np.ndarray, tokens: np.ndarray, shape: BatchShape, rank: Rank) -> Batch:
    """Return this worker's part of a batch, as tensors on the host.

    Args:
        whole: the rows of the global batch, int64 (B,), as the plan gives them.
        tokens: int64 (rows of the run,), as the plan has them.
    """
    parts = parts_of(whole, tokens, rank.world)
    rows, whole = parts[rank.index], parts.reshape(-1)
    part = shape.pairs
    mine = slice(rank.index * part, (rank.index + 1) * part)
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
        texts=_texts(pairs, rows, shape),
        label_class=torch.from_numpy(label_class[mine]),
        pair=torch.from_numpy(pair[mine]),
        excluded=torch.from_numpy(excluded),
        position=torch.from_numpy(position),
        pairs_in_all=torch.tensor(float(pair.sum())),
        labels_in_all=torch.tensor(float((label_class >= 0).sum())),
    )


@dataclass
class Batches:
    """This worker's parts of some batches of the plan, made while they are iterated over; counts their tokens."""

    pairs: Pairs
    plan: Plan
    shape: BatchShape
    rank: Rank
    numbers: range
    real_tokens: int = 0  # of the texts
    cut_tokens: int = 0  # of texts that found no room
    computed_tokens: int = 0  # of the sequences, padding included

    def __iter__(self) -> Iterator[Batch]:
        for number in self.numbers:
            batch = make_batch(self.pairs, self.plan.rows(number), self.plan.tokens, self.shape, self.rank)
            rows = parts_of(self.plan.rows(number), self.plan.tokens, self.rank.world)[self.rank.index]
            real = int((batch.texts.segments >= 0).sum())
            self.real_tokens += real
            self.cut_tokens += int(self.plan.tokens[rows[rows >= 0]].sum()) - real
            self.computed_tokens += batch.texts.segments.numel()
            yield batch

    def rows(self, number: int) -> int:
        """Return how many rows the global batch has."""
        return int((self.plan.rows(number) >= 0).sum())


def _texts(pairs: Pairs, rows: np.ndarray, shape: BatchShape) -> Texts:
    """Return the queries of `rows`, then their items; a row of PADDING has two texts without tokens."""
    sides = ((pairs.query, pairs.query_features), (pairs.item, pairs.item_features))
    ids, starts, lengths, before = [], [], [], 0
    for tokens, _ in sides:
        found, offsets = tokens.of(rows)
        ids.append(found)
        starts.append(offsets[:-1] + before)
        lengths.append(np.diff(offsets))
        before += len(found)
    packing = pack(np.concatenate(lengths), shape.tokens, shape.sequences)
    laid = packing.tokens(np.concatenate(ids), np.concatenate(starts), shape.tokens, pairs.query.pad)
    return Texts.of(packing, laid, joined_features([features.at(rows) for _, features in sides]))
