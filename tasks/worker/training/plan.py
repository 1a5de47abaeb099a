"""The batch plan: the rows of each step, random, with about the same number of tokens in every batch.

A pure function of token lengths, keys, seed and batch size, the same for any number of workers. The step number alone
locates a batch, so a resume neither repeats nor skips one. Batches are computed on request.
"""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

PADDING = -1
MIXED = -1  # group of a batch with rows of several groups
BLOCK_BATCHES = 64  # rows are exchanged among 64 batches: enough choice, and fast
READ_ROWS = 2**18  # rows per read
BALANCING_STRATA = 8  # strata of a block that are dealt to balance the batches; the others are dealt at random


@dataclass(frozen=True, eq=False)
class BatchPlan:
    """The global batches of a run; every row once per epoch.

    `tokens` int64 (rows,): tokens of each row's query and item, after truncation. `keys`: arrays int64 (rows,); rows
    that share a key are put into different batches if possible.
    """

    tokens: np.ndarray
    keys: Sequence[np.ndarray]
    batch_rows: int
    epochs: int
    seed: int
    groups: np.ndarray | None = None  # integers (rows,): batches have rows of one group if possible

    def __len__(self) -> int:
        return self.epochs * self._batches

    @property
    def _batches(self) -> int:
        """Batches per epoch."""
        return -(-len(self.tokens) // self.batch_rows)

    def rows(self, number: int) -> np.ndarray:
        """Return the rows of a batch, int64 (batch_rows,), PADDING at the end if it is not full."""
        epoch, batch = divmod(number, self._batches)
        blocks = max(1, round(self._batches / BLOCK_BATCHES))
        block = ((batch + 1) * blocks - 1) // self._batches
        return self._block(epoch, block, blocks)[batch - self._first(block, blocks)]

    def _first(self, block: int, blocks: int) -> int:
        """Return the first batch of a block."""
        return self._batches * block // blocks

    @functools.lru_cache(maxsize=2)  # noqa: B019, a plan lives as long as its run
    def _dealt(self, epoch: int) -> np.ndarray:
        """Return the rows of each batch before the exchange, (strata, batches), PADDING at the end.

        A stratum has rows of about equal length, and every batch gets one of them, so every block has its share of long
        rows.
        """
        kind = np.int32 if len(self.tokens) < 2**31 else np.int64
        random = np.random.default_rng([self.seed, epoch])
        order = np.arange(len(self.tokens), dtype=kind)
        random.shuffle(order)
        lengths = map_in_pieces(self.tokens, len(self.tokens), _short)
        if self.groups is not None:
            return _by_group(order, lengths, self.groups, self.batch_rows, random)
        return _strata(order, lengths, self._batches, random)

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def _block(self, epoch: int, block: int, blocks: int) -> np.ndarray:
        """Return the batches of a block, int64 (batches, batch_rows)."""
        first, last = self._first(block, blocks), self._first(block + 1, blocks)
        columns = self._dealt(epoch)[:, first:last].astype(np.int64)
        random = np.random.default_rng([self.seed, epoch, block])
        out = np.full((last - first, self.batch_rows), PADDING, dtype=np.int64)
        for batches in self._exchanging(columns):
            rows = columns[:, batches].reshape(-1)
            rows = rows[rows >= 0]
            dealt = _deal(self.tokens[rows], len(batches), random)
            separate(dealt, [key[rows] for key in self.keys])
            for batch, members in zip(batches, dealt, strict=True):
                found = members[members >= 0]
                out[batch, : len(found)] = rows[found]
        return out

    def _exchanging(self, columns: np.ndarray) -> list[list[int]]:
        """Return lists of batches (columns) that may exchange rows: all, or one list per group and one of MIXED."""
        if self.groups is None:
            return [list(range(columns.shape[1]))]
        alike: dict[int, list[int]] = {}
        for batch, rows in enumerate(columns.T):
            groups = self.groups[rows[rows >= 0]]
            alike.setdefault(int(groups[0]) if (groups == groups[0]).all() else MIXED, []).append(batch)
        return list(alike.values())


def map_in_pieces(values: np.ndarray, rows: int, change: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Return `change` of the first `rows` values, which are read in pieces."""
    return np.concatenate(
        [change(values[np.arange(start, min(start + READ_ROWS, rows))]) for start in range(0, max(rows, 1), READ_ROWS)]
    )


def _short(tokens: np.ndarray) -> np.ndarray:
    """Return token counts as uint16, to save memory; larger counts become the maximum."""
    return np.minimum(tokens, np.iinfo(np.uint16).max).astype(np.uint16)


def _strata(order: np.ndarray, lengths: np.ndarray, batches: int, random: np.random.Generator) -> np.ndarray:
    """Arrange randomly ordered rows as batches, (strata, batches), with rows of about equal length in a stratum."""
    dealt = np.full(-(-len(order) // batches) * batches, PADDING, dtype=order.dtype)
    _sort_by_length(order, lengths, dealt)
    dealt = dealt.reshape(-1, batches)
    return random.permuted(dealt, axis=1, out=dealt)


def _by_group(
    order: np.ndarray, lengths: np.ndarray, groups: np.ndarray, batch_rows: int, random: np.random.Generator
) -> np.ndarray:
    """Arrange randomly ordered rows as batches of one group each, (batch_rows, batches), by `_strata` of each group.

    The groups' remainders share batches, in a new combination in each epoch.
    """
    order = order[np.argsort(groups[order], kind="stable")]
    parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
    batches, rest = [], []
    for number in random.permutation(len(parts)).tolist():
        rows = parts[number]
        full = len(rows) // batch_rows
        rest.append(rows[full * batch_rows :])
        if full:
            batches.append(_strata(rows[: full * batch_rows], lengths, full, random))
    left = np.concatenate(rest)
    missing = -len(left) % batch_rows
    batches.append(np.pad(left, (0, missing), constant_values=PADDING).reshape(-1, batch_rows).T)
    together = np.hstack(batches)
    return together[:, random.permutation(together.shape[1])]


def _sort_by_length(order: np.ndarray, lengths: np.ndarray, out: np.ndarray) -> None:
    """Write the rows to `out`, sorted by length, the longest first (a stable counting sort, with little memory).

    Args:
        lengths: uint16, of all rows.
    """
    counts = np.zeros(int(lengths.max(initial=0)) + 1, dtype=np.int64)
    for start in range(0, len(order), READ_ROWS):
        counts += np.bincount(lengths[order[start : start + READ_ROWS]], minlength=len(counts))
    after = np.cumsum(counts[::-1])[::-1] - counts  # number of longer rows, plus rows of this length already written
    for start in range(0, len(order), READ_ROWS):
        some = order[start : start + READ_ROWS]
        length = lengths[some].astype(np.int64)
        ranked = np.argsort(-length, kind="stable")
        here = np.bincount(length, minlength=len(counts))
        longer = np.cumsum(here[::-1])[::-1] - here
        out[after[length[ranked]] + np.arange(len(some)) - longer[length[ranked]]] = some[ranked]
        after += here


def _deal(tokens: np.ndarray, batches: int, random: np.random.Generator) -> np.ndarray:
    """Deal places in `tokens` to batches, int64 (batches, strata); each batch gets one row of each stratum.

    A stratum has rows of about equal length, in random order. The last one, of the shortest rows, may have PADDING.
    """
    order = np.argsort(-tokens, kind="stable")
    strata = -(-len(tokens) // batches)
    missing = strata * batches - len(tokens)
    ranked = np.pad(order, (0, missing), constant_values=PADDING).reshape(strata, batches)
    lengths = np.pad(tokens[order], (0, missing)).reshape(strata, batches)
    dealt, totals = np.empty((batches, strata), dtype=np.int64), np.zeros(batches, dtype=np.int64)
    turns = random.permutation(strata)
    for turn, stratum in enumerate(turns.tolist()):
        shuffled = random.permutation(batches)
        if turn >= strata - BALANCING_STRATA:  # the longest row to the emptiest batch
            shuffled = shuffled[np.argsort(totals[shuffled], kind="stable")]
        dealt[shuffled, stratum] = ranked[stratum]
        totals[shuffled] += lengths[stratum]
    return dealt


def separate(dealt: np.ndarray, keys: Sequence[np.ndarray]) -> None:
    """Exchange rows within their stratum, in place, until no batch has two rows with an equal key, if possible.

    Otherwise they are spread, e.g. the rows of an item that has more rows than there are batches.

    Args:
        dealt: places of rows in each array of `keys`, or PADDING.
    """
    batches, strata = dealt.shape
    held = [[Counter(key[batch[batch >= 0]].tolist()) for key in keys] for batch in dealt]
    key_lists = [key.tolist() for key in keys]

    def keys_of(row: int) -> list[int]:
        return [key[row] for key in key_lists] if row >= 0 else []

    def fewer(batch: int, own: list[int], other: int, theirs: list[int]) -> int:
        """Return by how much an exchange reduces the pairs of rows with an equal key."""
        found = 0
        for kind, key in enumerate(own):
            here, there = held[batch][kind], held[other][kind]
            if not theirs:
                found += here[key] - 1 - there[key]
            elif theirs[kind] != key:
                found += here[key] - 1 - there[key] + there[theirs[kind]] - 1 - here[theirs[kind]]
        return found

    def move(batch: int, own: list[int], by: int) -> None:
        for kind, key in enumerate(own):
            held[batch][kind][key] += by

    # Few rows share a key with another one of their batch, so only these are visited, in the order of their places.
    waiting = [int(place) for place in np.flatnonzero(_alike(dealt, keys))]  # an ascending list is a heap
    seen = -1

    def wait_for(batch: int, own: list[int]) -> None:
        """Visit the rows of a batch that got a second row with an equal key, if their turn is still to come."""
        for kind, key in enumerate(own):
            if held[batch][kind][key] > 1:
                rows = dealt[batch]
                for stratum in np.flatnonzero((keys[kind][rows] == key) & (rows >= 0)).tolist():
                    if batch * strata + stratum > seen:
                        heapq.heappush(waiting, batch * strata + stratum)

    while waiting:
        turn = heapq.heappop(waiting)
        if turn == seen:
            continue
        seen = turn
        batch, stratum = divmod(turn, strata)
        row = int(dealt[batch, stratum])
        own = keys_of(row)
        unwanted = sum(held[batch][kind][key] - 1 for kind, key in enumerate(own))
        best, place = 0, batch
        for other in [(batch + step) % batches for step in range(1, batches)] if unwanted else []:
            found = fewer(batch, own, other, keys_of(int(dealt[other, stratum])))
            if found > best:
                best, place = found, other
            if found >= unwanted:
                break
        if best:
            theirs = keys_of(int(dealt[place, stratum]))
            move(batch, own, -1)
            move(place, own, 1)
            move(place, theirs, -1)
            move(batch, theirs, 1)
            dealt[batch, stratum], dealt[place, stratum] = dealt[place, stratum], row
            wait_for(batch, theirs)
            wait_for(place, own)


def _alike(dealt: np.ndarray, keys: Sequence[np.ndarray]) -> np.ndarray:
    """Return bool (batches, strata): True for rows that share a key with another one of their batch."""
    found = np.zeros(dealt.shape, dtype=bool)
    for batch, rows in enumerate(dealt):
        real = np.flatnonzero(rows >= 0)
        for key in keys:
            found[batch, real] |= repeated(key[rows[real]])
    return found


def repeated(values: np.ndarray) -> np.ndarray:
    """Return bool: True for values that occur more than once."""
    order = np.argsort(values, kind="stable")
    same = np.flatnonzero(values[order[1:]] == values[order[:-1]])
    found = np.zeros(len(values), dtype=bool)
    found[order[same]] = found[order[same + 1]] = True
    return found


def split_by_worker(rows: np.ndarray, tokens: np.ndarray, world: int) -> np.ndarray:
    """Split the rows of a batch by worker, (world, batch_rows / world), with about equally many tokens each.

    Args:
        rows: int64 (batch_rows,), with PADDING.
        tokens: int64 (rows of the run,).
    """
    lengths = np.where(rows >= 0, tokens[rows], -1)
    ranked = np.argsort(-lengths, kind="stable").reshape(-1, world)
    each = lengths[ranked]
    totals, order = np.zeros(world, dtype=np.int64), np.empty_like(ranked)
    # Rows of equal length, which most turns have, leave the order of the workers as it is.
    uneven = np.flatnonzero((each != each[:, :1]).any(axis=1)).tolist()
    for begin, end in itertools.pairwise([0, *(turn + 1 for turn in uneven), len(each)]):
        workers = np.argsort(totals, kind="stable")
        order[begin:end] = workers
        totals[workers] += each[begin:end].sum(axis=0)
    parts = np.empty((world, len(ranked)), dtype=np.int64)
    parts[order, np.arange(len(ranked))[:, None]] = rows[ranked]
    return parts
