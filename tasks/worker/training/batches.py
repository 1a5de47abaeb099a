"""The batches of a run, of one static shape that is known before training starts.

A batch has a fixed number of pairs, whose queries and items are packed into a fixed number of sequences. `plan.py` says
which rows a batch has.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from configs.schema.config import Config
from tasks.foundation.errors import ConfigError
from tasks.worker.model.embedding_model import Texts
from tasks.worker.model.features import joined_features
from tasks.worker.model.packing import pack
from tasks.worker.process.job import Rank
from tasks.worker.training.pair_arrays import HardNegatives, Pairs
from tasks.worker.training.plan import Plan, in_pieces, parts_of

SAMPLED_ROWS = 16_384  # the first rows of a run, by which the shape is chosen: warmup must find the same one, fast
SAMPLED_BATCHES = 256


@dataclass(frozen=True)
class BatchShape:
    """One worker's part of every batch: pairs, and the sequences that they are packed into, with their tokens."""

    pairs: int
    sequences: int
    tokens: int
    extra: int = 0  # hard negatives of each pair
    both_ways: bool = False  # whether items look for their queries too


@dataclass(frozen=True)
class Batch:
    """One worker's part of a global batch, B rows in all and b = B / world here; static shapes throughout."""

    texts: Texts  # first the b queries, then the b items, then n hard negatives of each pair
    label_class: torch.Tensor  # int64 (b,)
    pair: torch.Tensor  # float32 (b,): what a row counts in the contrastive loss; 0: it is no pair
    # bool (b, B * (1 + n)): of the items, then of the hard negatives of all workers, those that are no negatives of a
    # query: its own, known positives, padding, and what stands there before.
    excluded: torch.Tensor
    excluded_queries: torch.Tensor  # bool (b, B): likewise the queries that are no negatives of an item; or (b, 0)
    # float32 (B * (1 + n),), likewise, or (0,) without `heads.contrastive.logq`: the log of an item's popularity.
    popularity: torch.Tensor
    popularity_queries: torch.Tensor  # float32 (B,), or (0,): that of the queries
    position: torch.Tensor  # int64 (b,): where each row's own item is among the B
    pairs_in_all: torch.Tensor  # float32 (): rows of the global batch that are pairs
    label_weight: torch.Tensor  # float32 (b,): what a row counts in the loss of its class; 0: it has none
    labels_in_all: torch.Tensor  # float32 (): rows of the global batch with a class
    labels: torch.Tensor  # float32 (b, heads): what each head learns of a row; 0 where that is nothing
    head_weight: torch.Tensor  # float32 (b, heads): what a row counts in the loss of each head; 0: it has no label
    known_in_all: torch.Tensor  # float32 (heads,): rows of the global batch with a label

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
    groups = None
    if train.homogeneous is not None:
        groups = _groups(config, rows, pairs, train.homogeneous)
    return Plan(pairs.tokens[:rows], keys, train.batch_rows, train.epochs, config.seed + first_step, groups)


def _groups(config: Config, rows: int, pairs: Pairs, name: str) -> np.ndarray:
    """Return a number for the value of each of the first rows, int32 (rows,)."""
    if name == config.features.entity:
        return in_pieces(pairs.entity, rows, lambda some: some)
    column = config.features.categorical.index(name)
    return in_pieces(pairs.item_features.categorical, rows, lambda some: some[:, column].astype(np.int32))


def shape_for(config: Config, first_step: int, pairs: Pairs, world: int, mined: bool = False) -> BatchShape:
    """Return the shape of every batch: as many sequences as the batches of the run's own first rows need, by packing.

    A text that later finds no room loses its last tokens.

    Args:
        mined: whether there is a release, so that the pairs get hard negatives if they are configured.

    Raises:
        ConfigError: `train.sequences` are far too few for the texts.
    """
    train = config.train
    head = config.heads.contrastive
    extra = head.negatives.per_query if mined and head is not None and head.negatives is not None else 0
    both_ways = head is not None and head.symmetric
    plan = _plan_of_first(min(SAMPLED_ROWS, pairs.own_rows), config, first_step, pairs)
    needed = largest = 1
    for number in np.unique(np.linspace(0, len(plan) - 1, SAMPLED_BATCHES, dtype=np.int64)).tolist():
        for rows in parts_of(plan.rows(number), plan.tokens, world):
            real = rows[rows >= 0]
            # Hard negatives, which warmup does not know, are taken to be as long as the items of the batch.
            lengths = np.concatenate([pairs.query.lengths_of(real), *[pairs.item.lengths_of(real)] * (1 + extra)])
            needed = max(needed, pack(lengths, train.sequence_tokens).sequences)
            largest = max(largest, int(lengths.sum()))
    shape = BatchShape(
        train.batch_rows // world, _rounded_up(needed, train.chunks), train.sequence_tokens, extra, both_ways
    )
    if train.sequences is None:
        return shape
    given = train.sequences // world
    if given * train.sequence_tokens < largest:
        raise ConfigError(
            f"train.sequences {train.sequences}: a batch has up to {largest * world} tokens, and they hold "
            f"{train.sequences * train.sequence_tokens}; give at least {shape.sequences * world}, or null"
        )
    return replace(shape, sequences=given)


def _rounded_up(sequences: int, chunks: int) -> int:
    """Return a number at most 1/64 larger, one of few: spans whose texts are about as long share compiled graphs.

    It is a multiple of the chunks.
    """
    step = math.lcm(1 << max(0, sequences.bit_length() - 7), chunks)
    return -(-sequences // step) * step


def make_batch(
    pairs: Pairs,
    whole: np.ndarray,
    tokens: np.ndarray,
    shape: BatchShape,
    rank: Rank,
    negatives: HardNegatives | None = None,
) -> Batch:
    """Return this worker's part of a batch, as tensors on the host.

    Args:
        whole: the rows of the global batch, int64 (B,), as the plan gives them.
        tokens: int64 (rows of the run,), as the plan has them.
        negatives: None: those that the shape has room for are padding.
    """
    parts = parts_of(whole, tokens, rank.world)
    rows, whole = parts[rank.index], parts.reshape(-1)
    part = shape.pairs
    mine = slice(rank.index * part, (rank.index + 1) * part)
    real = whole >= 0
    pair = np.where(real, pairs.pair[whole], 0.0).astype(np.float32)
    weight = (pairs.weight[whole] / (pairs.mean_weight or 1.0)).astype(np.float32)  # 0 only in the rows of warmup
    labels, known = pairs.labels[whole], real[:, None] & ~np.isnan(pairs.labels[whole])
    label_class = np.where(real, pairs.label_class[whole], -1)
    labelled = label_class >= 0
    position = np.arange(len(whole))[mine]
    excluded = np.broadcast_to(~real, (part, len(whole))).copy()
    # Of a row that is no pair it is not known in the batch alone which items its query finds.
    excluded_queries = np.tile(pair == 0, (part, 1)) if shape.both_ways else np.zeros((part, 0), dtype=bool)
    extra = _extra(negatives, whole, shape)
    excluded_extra = np.broadcast_to((extra < 0) | _stands_before(extra), (part, len(extra))).copy()
    for kind, (key, positives) in enumerate(zip((pairs.item_key, pairs.text_key), pairs.known, strict=True)):
        batch_key = key[whole]
        excluded |= batch_key[mine, None] == batch_key[None, :]
        excluded |= positives.among(pairs.query_key[rows], batch_key)
        if shape.both_ways:
            excluded_queries |= batch_key[mine, None] == batch_key[None, :]
            excluded_queries |= positives.among(pairs.query_key[whole], batch_key[mine]).T
        if negatives is not None:
            extra_key = (negatives.item_key, negatives.text_key)[kind][extra]
            excluded_extra |= np.isin(extra_key, batch_key[real])
            excluded_extra |= positives.among(pairs.query_key[rows], extra_key)
    excluded[np.arange(part), position] = False
    if shape.both_ways:
        excluded_queries[np.arange(part), position] = False
    popularity, popularity_queries = _popularity(pairs, whole, len(extra), shape)
    return Batch(
        texts=_texts(pairs, rows, shape, negatives, extra.reshape(len(whole), shape.extra)[mine].reshape(-1)),
        label_class=torch.from_numpy(label_class[mine]),
        pair=torch.from_numpy((pair * weight)[mine]),
        excluded=torch.from_numpy(np.hstack([excluded, excluded_extra])),
        excluded_queries=torch.from_numpy(excluded_queries),
        popularity=torch.from_numpy(popularity),
        popularity_queries=torch.from_numpy(popularity_queries),
        position=torch.from_numpy(position),
        pairs_in_all=torch.tensor(float(pair.sum())),
        label_weight=torch.from_numpy(
            np.where(labelled, weight * pairs.class_weight[label_class], np.float32(0))[mine]
        ),
        labels_in_all=torch.tensor(float(labelled.sum())),
        labels=torch.from_numpy(np.where(known, labels, np.float32(0))[mine]),
        head_weight=torch.from_numpy(np.where(known, weight[:, None] * _balanced(pairs, labels), np.float32(0))[mine]),
        known_in_all=torch.from_numpy(known.sum(axis=0).astype(np.float32)),
    )


def _popularity(pairs: Pairs, whole: np.ndarray, extra: int, shape: BatchShape) -> tuple[np.ndarray, np.ndarray]:
    """Return that of the batch's items and hard negatives, which nothing is known of, and that of its queries."""
    none = np.zeros(0, dtype=np.float32)
    if pairs.popularity is None:
        return none, none
    items, queries = (np.where(whole >= 0, values[whole], np.float32(0)) for values in pairs.popularity)
    return np.pad(items, (0, extra)), queries if shape.both_ways else none


def _balanced(pairs: Pairs, labels: np.ndarray) -> np.ndarray:
    """Return what each row counts for each head by its label, float32 (rows, heads); without one anything."""
    found = np.ones_like(labels)
    for place, by_value in enumerate(pairs.balance.values()):
        if len(by_value):
            found[:, place] = by_value[np.nan_to_num(labels[:, place]).astype(np.int64)]
    return found


@dataclass
class Batches:
    """This worker's parts of some batches of the plan, made while they are iterated over; counts their tokens."""

    pairs: Pairs
    plan: Plan
    shape: BatchShape
    rank: Rank
    numbers: range
    negatives: HardNegatives | None = None
    real_tokens: int = 0  # of the texts
    cut_tokens: int = 0  # of texts that found no room
    computed_tokens: int = 0  # of the sequences, padding included

    def __iter__(self) -> Iterator[Batch]:
        for number in self.numbers:
            if number not in self.numbers:
                return  # it has become shorter
            whole, tokens = self.plan.rows(number), self.plan.tokens
            batch = make_batch(self.pairs, whole, tokens, self.shape, self.rank, self.negatives)
            rows = parts_of(whole, tokens, self.rank.world)[self.rank.index]
            real = int((batch.texts.segments >= 0).sum())
            self.real_tokens += real
            extra = _extra(self.negatives, rows, self.shape)
            mined = self.negatives.tokens.lengths[extra[extra >= 0]].sum() if self.negatives is not None else 0
            self.cut_tokens += int(tokens[rows[rows >= 0]].sum() + mined) - real
            self.computed_tokens += batch.texts.segments.numel()
            yield batch

    def end_before(self, number: int) -> None:
        """Make no batch from this one on."""
        self.numbers = range(self.numbers.start, min(number, self.numbers.stop))

    def rows(self, number: int) -> int:
        """Return how many rows the global batch has."""
        return int((self.plan.rows(number) >= 0).sum())


def _extra(negatives: HardNegatives | None, rows: np.ndarray, shape: BatchShape) -> np.ndarray:
    """Return the numbers of the hard negatives of rows, int64 (rows * shape.extra,), -1 where there is none."""
    if negatives is None:
        return np.full(len(rows) * shape.extra, -1, dtype=np.int64)
    return np.where(rows[:, None] >= 0, negatives.of_row[rows], -1).astype(np.int64).reshape(-1)


def _stands_before(numbers: np.ndarray) -> np.ndarray:
    """Return whether an equal number stands before each, bool."""
    again = np.ones(len(numbers), dtype=bool)
    again[np.unique(numbers, return_index=True)[1]] = False
    return again


def _texts(
    pairs: Pairs, rows: np.ndarray, shape: BatchShape, negatives: HardNegatives | None, extra: np.ndarray
) -> Texts:
    """Return the queries of `rows`, their items, and hard negatives; PADDING and -1 have texts without tokens."""
    sides = [(pairs.query, pairs.query_features, rows), (pairs.item, pairs.item_features, rows)]
    if negatives is not None:
        sides.append((negatives.tokens, negatives.features, extra))
    ids, starts, lengths, before = [], [], [], 0
    for tokens, _, numbers in sides:
        found, offsets = tokens.of(numbers)
        ids.append(found)
        starts.append(offsets[:-1] + before)
        lengths.append(np.diff(offsets))
        before += len(found)
    packing = pack(np.concatenate(lengths), shape.tokens, shape.sequences)
    laid = packing.tokens(np.concatenate(ids), np.concatenate(starts), shape.tokens, pairs.query.pad)
    arrays = joined_features([features.at(numbers) for _, features, numbers in sides])
    return Texts.of(packing, laid, arrays, (2 + shape.extra) * shape.pairs)
