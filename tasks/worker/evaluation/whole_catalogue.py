"""Ranks each row's own item in the whole catalogue, by the challenger's vectors and by a release's vectors.

Two models are compared on their common items, by id, so neither has easier competitors. The vectors
are read by partition: memory does not grow with the catalogue.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from tasks.contracts.evaluation import (
    WHOLE_COMPETITORS,
    Role,
    shared_competitors_of,
    shared_rank_of,
    whole_rank_of,
)
from tasks.contracts.runner import report
from tasks.data.items import TEXT, VECTOR
from tasks.data.rows import ITEM_ID
from tasks.worker.catalogue.reuse import EarlierVectors, as_matrix
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.evaluation.released_items import places, served_partition
from tasks.worker.model.relevant import RelevantTexts
from tasks.worker.process.job import Job

BATCH_ITEMS = 8192
BATCH_QUERIES = 512  # their scores take 16 MiB of memory
EQUAL = 1e-6  # scores closer than this are equal: the rounding of a matrix product depends on its shape


class ModelVectors(NamedTuple):
    """One model: vectors of each row's query and own item, float32 (rows, width), and its released vectors."""

    queries: np.ndarray
    own: np.ndarray
    vectors: EarlierVectors
    again: Path | None = None  # folder of `ReleasedItems.embed_changed`; None: no item has changed


class SharedRanks(NamedTuple):
    """The ranks of two models among their `items` common items, int64 (rows,) each, from 1.

    `competitors` int64 (rows,): these items without the relevant ones of the row.
    """

    items: int
    challenger: np.ndarray
    other: np.ndarray
    competitors: np.ndarray


class WholeRanks(NamedTuple):
    """The challenger's ranks among all `items` of the catalogue, int64 (rows,), and the comparisons, by model name.

    `competitors` int64 (rows,): all items without the relevant ones of the row.
    """

    items: int
    ranks: np.ndarray
    competitors: np.ndarray
    shared: dict[str, SharedRanks]

    def columns_of(self, role: Role, name: str) -> dict[str, pa.Array]:
        """Return the ranks of a role as columns of the row results; for a baseline also the challenger's ranks."""
        if role is Role.challenger:
            found = {whole_rank_of(role): self.ranks, WHOLE_COMPETITORS: self.competitors}
            return {column: pa.array(each.astype(np.int32)) for column, each in found.items()}
        if name not in self.shared:
            return {}
        duel = self.shared[name]
        found = {
            shared_rank_of(Role.challenger, role): duel.challenger,
            shared_rank_of(role, role): duel.other,
            shared_competitors_of(role): duel.competitors,
        }
        return {column: pa.array(each.astype(np.int32)) for column, each in found.items()}


def rank_in_whole(
    job: Job,
    accelerator: Accelerator,
    challenger: ModelVectors,
    others: Mapping[str, ModelVectors],
    partitions: int,
    right: RelevantTexts,
) -> WholeRanks:
    """Rank each row's own item; the workers share the partitions, and each gets the whole result.

    Items with an equal or NaN score rank before the own item, so that a collapsed model ranks badly, not perfectly.

    Args:
        others: models by name; an item is common if both hold its id.
        partitions: of the catalogue and the challenger's vectors.

    Raises:
        CorruptFolder: a file of the vectors is damaged.
    """
    rows, device = len(challenger.own), accelerator.ranking_device
    counts = {name: np.zeros((3, rows), dtype=np.int64) for name in others}
    items = dict.fromkeys(others, 0)
    whole, held = np.zeros((2, rows), dtype=np.int64), 0
    numbers = range(partitions)[job.share.index :: job.share.of]
    for done, number in enumerate(numbers, start=1):
        theirs_of = {
            name: served_partition(other.vectors, number, partitions, other.again) for name, other in others.items()
        }
        for table in _batches(challenger.vectors.table(number, [ITEM_ID, TEXT, VECTOR])):
            masked = right.pairs_of(table[TEXT].to_pylist())
            shared = {name: _held_by(theirs, table) for name, theirs in theirs_of.items()}
            vectors = as_matrix(table[VECTOR]).astype(np.float32, copy=False)
            places = [at for at, _ in shared.values()]
            every = [np.ones(len(vectors), dtype=bool), *(at >= 0 for at in places)]
            above = _above(challenger, vectors, masked, every, device)
            whole += above[0], len(vectors) - np.bincount(masked[0], minlength=rows)
            held += len(vectors)
            for (name, (at, theirs)), of_challenger in zip(shared.items(), above[1:], strict=True):
                both = at >= 0
                items[name] += int(both.sum())
                counts[name][0] += of_challenger
                common, all_of_them = _moved(masked, both), [np.ones(len(theirs), dtype=bool)]
                counts[name][1] += _above(others[name], theirs, common, all_of_them, device)[0]
                counts[name][2] += len(theirs) - np.bincount(common[0], minlength=rows)
        report("whole catalogue", done, len(numbers))
    whole, held = _of_all(accelerator, whole), int(_of_all(accelerator, np.array([held]))[0])
    duels = {}
    for name in others:
        mine, its, competitors = _of_all(accelerator, counts[name])
        many = int(_of_all(accelerator, np.array([items[name]]))[0])
        duels[name] = SharedRanks(many, mine + 1, its + 1, competitors)
    return WholeRanks(held, whole[0] + 1, whole[1], duels)


def _batches(table: pa.Table | None) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows if table is not None else 0, BATCH_ITEMS):
        assert table is not None
        yield table.slice(start, BATCH_ITEMS)


def _held_by(theirs: pa.Table | None, table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return each item's row in the other model's file, int64 (items,), -1 if absent; and the found vectors."""
    if theirs is None:
        return np.full(table.num_rows, -1), np.zeros((0, 0), dtype=np.float32)
    at = places(table, theirs)
    return at, as_matrix(theirs[VECTOR].take(pa.array(at[at >= 0]))).astype(np.float32, copy=False)


def _moved(masked: tuple[np.ndarray, np.ndarray], both: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Convert pairs of a row and a place in a batch to places among its common items; other pairs are dropped."""
    rows, places = masked
    kept = both[places]
    return rows[kept], (np.cumsum(both) - 1)[places[kept]]


def _above(
    side: ModelVectors,
    vectors: np.ndarray,
    masked: tuple[np.ndarray, np.ndarray],
    among: Sequence[np.ndarray],
    device: torch.device,
) -> list[np.ndarray]:
    """Count the items that score at least as high as each row's own item, int64 (rows,), for each set of items.

    Args:
        masked: rows and places of ignored items, ordered by row.
        among: bool (items,) each.
    """
    limits = np.einsum("rw,rw->r", side.queries, side.own) - EQUAL
    counts = np.zeros((len(among), len(limits)), dtype=np.int64)
    sets = torch.from_numpy(np.stack(among, axis=1).astype(np.float32)).to(device)
    items = torch.from_numpy(np.ascontiguousarray(vectors.T)).to(device)
    for start in range(0, len(limits) if len(vectors) else 0, BATCH_QUERIES):
        part = slice(start, start + BATCH_QUERIES)
        scores = torch.from_numpy(side.queries[part]).to(device) @ items
        first, last = np.searchsorted(masked[0], [start, start + BATCH_QUERIES])
        rows, places = masked[0][first:last] - start, masked[1][first:last]
        scores[torch.from_numpy(rows).to(device), torch.from_numpy(places).to(device)] = -torch.inf
        above = ~(scores < torch.from_numpy(limits[part]).to(device)[:, None])
        counts[:, part] = (above.float() @ sets).round().long().cpu().numpy().T
    return list(counts)


def _of_all(accelerator: Accelerator, part: np.ndarray) -> np.ndarray:
    found: np.ndarray = accelerator.sum(torch.from_numpy(part)).numpy()
    return found
