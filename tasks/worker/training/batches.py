"""The batches of a run, of one static shape that is known before training starts.

A batch has a fixed number of pairs, whose queries and items are packed into a fixed number of sequences. `plan.py`
chooses its rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from configs.schema.config import Config
from tasks.foundation.errors import ConfigError
from tasks.worker.model.embedding_model import Texts
from tasks.worker.model.features import FeatureArrays, concatenate_features
from tasks.worker.model.packing import pack
from tasks.worker.model.tokens import TokenLists
from tasks.worker.process.job import Rank
from tasks.worker.training.pair_arrays import HardNegatives, Pairs
from tasks.worker.training.plan import PADDING, BatchPlan, PlanFolder, map_in_pieces, split_by_worker

SAMPLED_ROWS = 16_384  # the shape is chosen by the run's first rows, so that warmup finds the same one, fast
SAMPLED_BATCHES = 256
READ_ROWS, READ_BATCHES = 2**14, 16  # rows and batches at most that are read at once, but at least one batch


@dataclass(frozen=True)
class BatchShape:
    """One worker's part of every batch: pairs, and the sequences that they are packed into, with their tokens."""

    pairs: int
    sequences: int
    tokens: int
    extra: int = 0  # hard negatives per pair
    both_ways: bool = False  # symmetric loss: items are matched to queries too
    of_items: int = 0  # sequences of the items, if queries alone are trained; 0: they are among the others


@dataclass(frozen=True)
class Batch:
    """One worker's part of a global batch of B rows, b = B / world of them here; static shapes throughout."""

    texts: Texts  # first the b queries, then the b items, then n hard negatives of each pair, unless `items` has these
    label_class: torch.Tensor  # int64 (b,)
    pair: torch.Tensor  # float32 (b,): weight in the contrastive loss; 0 if the row is no pair
    # bool (b, B * (1 + n)), over the items, then the hard negatives, of all workers: True if not a negative of the
    # query: its own item in other rows, known positives, padding, and repeated hard negatives.
    excluded: torch.Tensor
    excluded_queries: torch.Tensor  # bool (b, B): True for queries that are no negatives of the item; or (b, 0)
    # float32 (B * (1 + n),): log of each item's popularity; (0,) without `heads.contrastive.logq`.
    popularity: torch.Tensor
    popularity_queries: torch.Tensor  # float32 (B,), or (0,): the same for queries
    position: torch.Tensor  # int64 (b,): position of each row's own item among the B
    pairs_in_all: torch.Tensor  # float32 (): number of pairs in the global batch
    label_weight: torch.Tensor  # float32 (b,): weight in the classification loss; 0 without a class
    labels_in_all: torch.Tensor  # float32 (): rows of the global batch with a class
    labels: torch.Tensor  # float32 (b, heads): target of each label head; 0 if missing
    head_weight: torch.Tensor  # float32 (b, heads): weight in the loss of each label head; 0 without a label
    known_in_all: torch.Tensor  # float32 (heads,): rows of the global batch with a label
    items: Texts | None = None  # the b items and the hard negatives, if queries alone are trained

    def to(self, device: torch.device) -> Batch:
        moved: dict[str, Any] = {name: None if each is None else each.to(device) for name, each in vars(self).items()}
        return Batch(**moved)


def make_plan(config: Config, first_step: int, pairs: Pairs, folder: PlanFolder | None = None) -> BatchPlan:
    """Return the batch plan of a run; the first step is part of the seed, so that runs shuffle differently."""
    return replace(_plan_of_first(len(pairs), config, first_step, pairs), folder=folder)


def _plan_of_first(rows: int, config: Config, first_step: int, pairs: Pairs) -> BatchPlan:
    """Return the batch plan of the first `rows` rows."""
    train = config.train
    keys = [key[:rows] for key in (pairs.item_key, pairs.text_key, pairs.query_key)]
    groups = None
    if train.batch_by is not None:
        groups = _groups(config, rows, pairs, train.batch_by)
    return BatchPlan(pairs.tokens[:rows], keys, train.batch_rows, train.epochs, config.seed + first_step, groups)


def _groups(config: Config, rows: int, pairs: Pairs, name: str) -> np.ndarray:
    """Return the group of each of the first `rows` rows, int32 (rows,)."""
    if name == config.features.entity:
        return map_in_pieces(pairs.entity, rows, lambda some: some)
    column = config.features.categorical.index(name)
    return map_in_pieces(pairs.item_features.categorical, rows, lambda some: some[:, column].astype(np.int32))


def choose_shape(config: Config, first_step: int, pairs: Pairs, world: int, mined: bool = False) -> BatchShape:
    """Return the shape of every batch, with the number of sequences needed by a sample of the run's first rows.

    Texts of later batches that don't fit are truncated.

    Args:
        mined: a release exists, so pairs get hard negatives if configured.

    Raises:
        ConfigError: `train.sequences` are far too few for the texts.
    """
    train = config.train
    head = config.heads.contrastive
    extra = head.negatives.per_query if mined and head is not None and head.negatives is not None else 0
    both_ways = head is not None and head.symmetric
    plan = _plan_of_first(min(SAMPLED_ROWS, pairs.own_rows), config, first_step, pairs)
    needed = largest = of_items = 1
    for number in np.unique(np.linspace(0, len(plan) - 1, SAMPLED_BATCHES, dtype=np.int64)).tolist():
        for rows in split_by_worker(plan.rows(number), plan.tokens, world):
            real = rows[rows >= 0]
            # Hard negatives are unknown in warmup; assume that they are as long as the batch's items.
            lengths, items = pairs.query.lengths_of(real), [pairs.item.lengths_of(real)] * (1 + extra)
            if train.sides == "queries":
                of_items = max(of_items, pack(np.concatenate(items), train.sequence_tokens).sequences)
            else:
                lengths = np.concatenate([lengths, *items])
            needed = max(needed, pack(lengths, train.sequence_tokens).sequences)
            largest = max(largest, int(lengths.sum()))
    shape = BatchShape(
        train.batch_rows // world, _rounded_up(needed, train.gradcache_chunks), train.sequence_tokens, extra, both_ways,
        _rounded_up(of_items, 1) if train.sides == "queries" else 0,
    )  # fmt: skip
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
    """Round up by at most 1/64, or to a multiple of `chunks`, so that spans of similar texts share compiled graphs."""
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
        whole: int64 (B,), the plan's rows of the global batch.
        tokens: int64 (rows of the run,), the plan's token counts.
        negatives: hard negatives; None: padding in their place.
    """
    parts = split_by_worker(whole, tokens, rank.world)
    rows, whole = parts[rank.index], parts.reshape(-1)
    part = shape.pairs
    mine = slice(rank.index * part, (rank.index + 1) * part)
    real = whole >= 0
    pair = np.where(real, pairs.pair[whole], 0.0).astype(np.float32)
    weight = (pairs.weight[whole] / (pairs.mean_weight or 1.0)).astype(np.float32)  # mean 0: only in warmup's rows
    labels, known = pairs.labels[whole], real[:, None] & ~np.isnan(pairs.labels[whole])
    label_class = np.where(real, pairs.label_class[whole], -1)
    labelled = label_class >= 0
    position = np.arange(len(whole))[mine]
    extra = _extra(negatives, whole, shape)
    of_items = slice(0, len(whole))
    excluded = np.empty((part, len(whole) + len(extra)), dtype=bool)
    excluded[:, of_items], excluded[:, len(whole) :] = ~real, (extra < 0) | _stands_before(extra)
    # The query of a row that is no pair is no negative: the batch alone does not tell the items relevant to it.
    excluded_queries = np.tile(pair == 0, (part, 1)) if shape.both_ways else np.zeros((part, 0), dtype=bool)
    for kind, (key, positives) in enumerate(zip((pairs.item_key, pairs.text_key), pairs.known, strict=True)):
        batch_key = key[whole]
        alike = np.flatnonzero(_repeated(batch_key))
        here = alike[(alike >= mine.start) & (alike < mine.stop)]
        equal, places = batch_key[here, None] == batch_key[alike], np.ix_(here - mine.start, alike)
        excluded[places] |= equal
        excluded[positives.among(pairs.query_key[rows], batch_key)] = True
        if shape.both_ways:
            excluded_queries[places] |= equal
            excluded_queries[positives.among(pairs.query_key[whole], batch_key[mine])[::-1]] = True
        if negatives is not None:
            extra_key = (negatives.item_key, negatives.text_key)[kind][extra]
            excluded[:, len(whole) :] |= np.isin(extra_key, batch_key[real])
            row, column = positives.among(pairs.query_key[rows], extra_key)
            excluded[row, len(whole) + column] = True
    excluded[np.arange(part), position] = False
    if shape.both_ways:
        excluded_queries[np.arange(part), position] = False
    popularity, popularity_queries = _popularity(pairs, whole, len(extra), shape)
    own = extra.reshape(len(whole), shape.extra)[mine].reshape(-1)
    queries = (pairs.query, pairs.query_features, rows)
    items = [(pairs.item, pairs.item_features, rows)]
    if negatives is not None:
        items.append((negatives.tokens, negatives.features, own))
    apart = shape.of_items > 0
    return Batch(
        texts=_texts([queries, *([] if apart else items)], shape, shape.sequences, 1 if apart else 2 + shape.extra),
        items=_texts(items, shape, shape.of_items, 1 + shape.extra) if apart else None,
        label_class=torch.from_numpy(label_class[mine]),
        pair=torch.from_numpy((pair * weight)[mine]),
        excluded=torch.from_numpy(excluded),
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
    """Return the log popularity of the batch's items and hard negatives (0, unknown), and of its queries."""
    none = np.zeros(0, dtype=np.float32)
    if pairs.popularity is None:
        return none, none
    items, queries = (np.where(whole >= 0, values[whole], np.float32(0)) for values in pairs.popularity)
    return np.pad(items, (0, extra)), queries if shape.both_ways else none


def _balanced(pairs: Pairs, labels: np.ndarray) -> np.ndarray:
    """Return each row's balancing weight per label head, float32 (rows, heads); arbitrary without a label."""
    found = np.ones_like(labels)
    for place, by_value in enumerate(pairs.balance.values()):
        if len(by_value):
            found[:, place] = by_value[np.nan_to_num(labels[:, place]).astype(np.int64)]
    return found


@dataclass
class Batches:
    """Iterates over this worker's parts of some batches, made on the way, and counts their tokens."""

    pairs: Pairs
    plan: BatchPlan
    shape: BatchShape
    rank: Rank
    numbers: range
    negatives: HardNegatives | None = None
    real_tokens: int = 0  # tokens of texts in the batches
    cut_tokens: int = 0  # tokens truncated for lack of room
    computed_tokens: int = 0  # tokens of the sequences, padding included

    def __iter__(self) -> Iterator[Batch]:
        at_once = max(1, min(READ_BATCHES, READ_ROWS // self.plan.batch_rows))
        for first in range(self.numbers.start, self.numbers.stop, at_once):
            if first not in self.numbers:
                return  # `end_before` has shortened the range
            numbers = self.numbers[first - self.numbers.start :][:at_once]
            pairs, negatives, batches = self._read(numbers)
            for number, whole in zip(numbers, batches, strict=True):
                if number not in self.numbers:
                    return
                yield self._make(pairs, negatives, whole)

    def _read(self, numbers: range) -> tuple[Pairs, HardNegatives | None, np.ndarray]:
        """Read the rows of some batches into memory, once each; return them and each batch's places among them.

        The last row of the run follows, in whose place padding stands.
        """
        planned = np.stack([self.plan.rows(number) for number in numbers])
        rows = np.append(np.unique(planned[planned >= 0]), len(self.pairs) - 1)
        whole = np.where(planned >= 0, np.searchsorted(rows[:-1], planned), PADDING)
        tokens, own = self.plan.tokens[rows], np.zeros(len(rows), dtype=bool)
        for batch in whole:
            own[split_by_worker(batch, tokens, self.rank.world)[self.rank.index]] = True
        asked = np.ones_like(own) if self.shape.both_ways else own
        negatives = self.negatives
        if negatives is not None:
            negatives = replace(negatives, of_row=negatives.of_row[rows])
        return self.pairs.take(rows, own, asked), negatives, whole

    def _make(self, pairs: Pairs, negatives: HardNegatives | None, whole: np.ndarray) -> Batch:
        """Make a batch and count its tokens."""
        batch = make_batch(pairs, whole, pairs.tokens, self.shape, self.rank, negatives)
        rows = split_by_worker(whole, pairs.tokens, self.rank.world)[self.rank.index]
        laid = [batch.texts.segments.numpy(), *([] if batch.items is None else [batch.items.segments.numpy()])]
        real = sum(int(np.count_nonzero(each >= 0)) for each in laid)
        self.real_tokens += real
        extra = _extra(negatives, rows, self.shape)
        mined = negatives.tokens.lengths_of(extra[extra >= 0]).sum() if negatives is not None else 0
        self.cut_tokens += int(pairs.tokens[rows[rows >= 0]].sum() + mined - real)
        self.computed_tokens += sum(each.size for each in laid)
        return batch

    def end_before(self, number: int) -> None:
        """End the iteration before batch `number`."""
        self.numbers = range(self.numbers.start, min(number, self.numbers.stop))

    def rows(self, number: int) -> int:
        """Return the number of rows of a global batch."""
        return int((self.plan.rows(number) >= 0).sum())


def _extra(negatives: HardNegatives | None, rows: np.ndarray, shape: BatchShape) -> np.ndarray:
    """Return the numbers of the rows' hard negatives, int64 (rows * shape.extra,); -1 if missing."""
    if negatives is None:
        return np.full(len(rows) * shape.extra, -1, dtype=np.int64)
    return np.where(rows[:, None] >= 0, negatives.of_row[rows], -1).astype(np.int64).reshape(-1)


def _repeated(values: np.ndarray) -> np.ndarray:
    """Return bool: True for values that occur more than once."""
    order = np.argsort(values, kind="stable")
    same = np.flatnonzero(values[order[1:]] == values[order[:-1]])
    found = np.zeros(len(values), dtype=bool)
    found[order[same]] = found[order[same + 1]] = True
    return found


def _stands_before(numbers: np.ndarray) -> np.ndarray:
    """Return bool: True for each repetition of an earlier number."""
    again = np.ones(len(numbers), dtype=bool)
    again[np.unique(numbers, return_index=True)[1]] = False
    return again


def _texts(
    sides: Sequence[tuple[TokenLists, FeatureArrays, np.ndarray]], shape: BatchShape, sequences: int, per_pair: int
) -> Texts:
    """Return numbered texts, packed; PADDING and -1 become texts without tokens.

    Args:
        per_pair: texts of a pair; missing ones are padding.
    """
    ids, starts, lengths, before = [], [], [], 0
    for tokens, _, numbers in sides:
        found, offsets = tokens.of(numbers)
        ids.append(found)
        starts.append(offsets[:-1] + before)
        lengths.append(np.diff(offsets))
        before += len(found)
    packing = pack(np.concatenate(lengths), shape.tokens, sequences)
    laid = packing.tokens(np.concatenate(ids), np.concatenate(starts), shape.tokens, sides[0][0].pad)
    arrays = concatenate_features([features.at(numbers) for _, features, numbers in sides])
    return Texts.of(packing, laid, arrays, per_pair * shape.pairs)
