"""The batch plan: the rows of each step, random, with about the same number of tokens in every batch.

A pure function of token lengths, keys, seed and batch size, the same for any number of workers. The step number alone
locates a batch, so a resume neither repeats nor skips one. Batches are computed on request, a block of them at a time.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.optimize import linear_sum_assignment

from tasks.worker.process.job import Job
from tasks.worker.process.machine import make_once_per_machine

PADDING = -1
MIXED = -1  # group of a batch with rows of several groups
BLOCK_BATCHES = 64  # a block's rows are dealt to 64 batches: enough choice, and fast
READ_ROWS = 2**17  # rows per read
BALANCING_STRATA = 8  # strata of a block that are dealt to balance the batches; the others are dealt at random


@dataclass(frozen=True)
class PlanFolder:
    """A local folder with the blocks of a plan, which the workers of a machine make in turn, each block once."""

    path: Path
    worker: int  # this worker's number on its machine
    workers: int

    @classmethod
    def of(cls, job: Job) -> PlanFolder | None:
        """Return the folder of a job's machine; None for a worker alone, which keeps its block in memory."""
        rank = job.rank
        return cls(job.machine.folder, rank.local, rank.local_world) if rank.local_world > 1 else None

    def file(self, name: str, make: Callable[[], np.ndarray]) -> Path:
        """Return a file with an array's bytes, which the first worker that needs it makes."""
        path = self.path / f"plan-{name}"
        make_once_per_machine(path, lambda: np.ascontiguousarray(make()).data, "to plan batches")
        return path


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
    folder: PlanFolder | None = None  # None: every block is made in this process

    def __len__(self) -> int:
        return self.epochs * self._batches

    @property
    def _batches(self) -> int:
        """Batches per epoch."""
        return -(-len(self.tokens) // self.batch_rows)

    def rows(self, number: int) -> np.ndarray:
        """Return the rows of a batch, int64 (batch_rows,), PADDING at the end if it is not full."""
        epoch, batch = divmod(number, self._batches)
        block = ((batch + 1) * self._blocks - 1) // self._batches
        return self._block(epoch, block)[batch - self._first(block)]

    @property
    def _blocks(self) -> int:
        """Blocks per epoch."""
        return max(1, round(self._batches / BLOCK_BATCHES))

    def _first(self, block: int) -> int:
        """Return the first batch of a block."""
        return self._batches * block // self._blocks

    @functools.lru_cache(maxsize=2)  # noqa: B019, a plan lives as long as its run
    def _block(self, epoch: int, block: int) -> np.ndarray:
        """Return the batches of a block, int64 (batches, batch_rows).

        Workers of one machine make as many blocks at a time as they are, each its own, and read the others.
        """
        folder = self.folder
        if folder is None:
            return self._make_block(epoch, block)
        own = block - block % folder.workers + folder.worker
        if own < self._blocks:
            self._block_file(folder, epoch, own)
        return np.fromfile(self._block_file(folder, epoch, block), np.int64).reshape(-1, self.batch_rows)

    def _block_file(self, folder: PlanFolder, epoch: int, block: int) -> Path:
        return folder.file(f"{epoch}-{block}", functools.partial(self._make_block, epoch, block))

    def _make_block(self, epoch: int, block: int) -> np.ndarray:
        """Like `_block`, in this process."""
        shuffled = self._shuffled(epoch, self._first(block), self._first(block + 1))
        random = np.random.default_rng([self.seed, epoch, block])
        out = np.full((len(shuffled), self.batch_rows), PADDING, dtype=np.int64)
        for batches in self._together(shuffled):
            rows = shuffled[batches].T.reshape(-1)
            rows = rows[rows >= 0]
            tokens, *keys = self._read(rows)
            for batch, members in zip(batches, deal(tokens, keys, len(batches), random), strict=True):
                found = members[members >= 0]
                out[batch, : len(found)] = rows[found]
        return out

    def _read(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return tokens and keys of some rows, read in pieces of all columns, which files hold side by side."""
        pieces = [rows[start : start + READ_ROWS] for start in range(0, max(len(rows), 1), READ_ROWS)]
        read = [[column[piece] for column in (self.tokens, *self.keys)] for piece in pieces]
        return [np.concatenate(column) for column in zip(*read, strict=True)]

    def _together(self, rows: np.ndarray) -> list[list[int]]:
        """Return lists of batches whose rows are dealt together: all, or one list per group and one of MIXED."""
        if self.groups is None:
            return [list(range(len(rows)))]
        alike: dict[int, list[int]] = {}
        for batch, members in enumerate(rows):
            groups = self.groups[members[members >= 0]]
            alike.setdefault(int(groups[0]) if (groups == groups[0]).all() else MIXED, []).append(batch)
        return list(alike.values())

    def _shuffled(self, epoch: int, first: int, last: int) -> np.ndarray:
        """Return the rows of some batches before their block is dealt, int64 (batches, strata), PADDING at the end."""
        if self.folder is None:
            return self._shuffled_epoch(epoch)[first:last].astype(np.int64)
        file = self.folder.file(str(epoch), functools.partial(self._shuffle, epoch))
        strata = file.stat().st_size // self._kind.itemsize // self._batches
        start = first * strata * self._kind.itemsize
        rows = np.fromfile(file, self._kind, (last - first) * strata, offset=start)
        return rows.reshape(-1, strata).astype(np.int64)

    @functools.lru_cache(maxsize=2)  # noqa: B019
    def _shuffled_epoch(self, epoch: int) -> np.ndarray:
        return self._shuffle(epoch)

    def _shuffle(self, epoch: int) -> np.ndarray:
        """Return the rows of each batch before blocks are dealt, (batches, strata), PADDING at the end.

        A stratum has rows of about equal length, and every batch gets one of them, so every block has its share of long
        rows.
        """
        random = np.random.default_rng([self.seed, epoch])
        order = np.arange(len(self.tokens), dtype=self._kind)
        random.shuffle(order)
        lengths = map_in_pieces(self.tokens, len(self.tokens), _short)
        if self.groups is not None:
            return _by_group(order, lengths, self.groups, self.batch_rows, random).T
        return _strata(order, lengths, self._batches, random).T

    @property
    def _kind(self) -> np.dtype:
        """The type of a row's number in memory."""
        return np.dtype(np.int32 if len(self.tokens) < 2**31 else np.int64)


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


def deal(tokens: np.ndarray, keys: Sequence[np.ndarray], batches: int, random: np.random.Generator) -> np.ndarray:
    """Return the places of rows in `tokens`, int64 (batches, strata), PADDING where rows are missing.

    A stratum has as many rows as there are batches, of about equal length, and every batch gets one of them. The strata
    come one after another. A stratum that would add a row to a batch with the same key is dealt anew, so that its rows
    meet as few rows with an equal key as possible. So a key with more rows than batches is spread over all of them.

    Args:
        tokens: int64 (rows,).
        keys: arrays of integers (rows,).
    """
    order = np.argsort(-tokens, kind="stable")
    if batches == 1:
        return order[None]
    strata = -(-len(tokens) // batches)
    missing = strata * batches - len(tokens)
    ranked = np.pad(order, (0, missing), constant_values=PADDING).reshape(strata, batches)
    lengths = np.pad(tokens[order], (0, missing)).reshape(strata, batches)
    numbers, several = _number_shared(keys, len(tokens))
    numbers = np.pad(numbers[:, order], ((0, 0), (0, missing))).reshape(len(keys), strata, batches)
    held = np.zeros((several + 1, batches), dtype=np.min_scalar_type(strata))  # rows with each shared key, by batch
    dealt, totals = np.empty((batches, strata), dtype=np.int64), np.zeros(batches, dtype=np.int64)
    for turn, stratum in enumerate(random.permutation(strata).tolist()):
        batch_of = random.permutation(batches)
        if turn >= strata - BALANCING_STRATA:  # the longest row to the emptiest batch
            batch_of = batch_of[np.argsort(totals[batch_of], kind="stable")]
        own = numbers[:, stratum]
        if held[own, batch_of].any():
            batch_of = assign(held[own].sum(axis=0, dtype=np.int64), batch_of)
        held[own, batch_of] += 1
        held[0] = 0
        dealt[batch_of, stratum] = ranked[stratum]
        totals[batch_of] += lengths[stratum]
    return dealt


def assign(meetings: np.ndarray, wish: np.ndarray) -> np.ndarray:
    """Return a batch for each row, int64 (rows,), each batch once: with the fewest meetings, then the most wishes kept.

    Args:
        meetings: int64 (rows, batches), number of rows with an equal key that a row meets in a batch.
        wish: int64 (rows,), a batch for each row, each batch once.
    """
    costs = meetings * (len(wish) + 1)  # one meeting outweighs all wishes
    costs[np.arange(len(wish)), wish] -= 1
    return linear_sum_assignment(costs)[1]


def _number_shared(keys: Sequence[np.ndarray], rows: int) -> tuple[np.ndarray, int]:
    """Number the keys that several rows have, of all kinds together, from 1.

    Returns:
        The number of each row's keys, int64 (kinds, rows), 0 for a key of one row; and the highest number.
    """
    numbers, found = np.zeros((len(keys), rows), dtype=np.int64), 0
    for kind, key in enumerate(keys):
        _, which, counts = np.unique(key, return_inverse=True, return_counts=True)
        several = counts > 1
        numbers[kind] = np.where(several, found + np.cumsum(several), 0)[which]
        found += int(several.sum())
    return numbers, found


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
