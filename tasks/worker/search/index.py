"""Exact search over the vectors of a release, a few thousand vectors at a time, for one query or thousands.

The vectors stay in memory if they fit; otherwise each search reads the shards.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import torch

from infra.store.base import Store
from infra.store.manifest import expect_manifest, open_files, read_fact, read_manifest
from tasks.contracts.search import Hit, ListedItem
from tasks.data.layers import layers_of, open_layers
from tasks.data.rows import ITEM_ID, TEXT, VECTOR, VECTORS_KIND
from tasks.worker.catalogue.reuse import as_matrix, expect_vectors
from tasks.worker.devices.ahead import own_threads
from tasks.worker.model.ranks import HOST, bands, multiply
from tasks.worker.model.relevant import hash_texts

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

MEMORY_BYTES = 2**30  # bytes of vectors; a larger release is read from the shards for each search
BATCH_VECTORS = 8192
BATCH_QUERIES = 512
EQUAL = 1e-6  # scores closer than this are equal, because matrix products of different shapes round differently
ABSENT = 2**62  # the rank of an item without a vector


class Found(NamedTuple):
    """`places` int64 and `scores` float32, both (queries, k), best first; place -1 beyond the last hit.

    `ranks` int64 (queries,): rank of each query's own item, from 1; ABSENT without one. `shared_ranks`: its rank among
    the `shared` vectors of the search; ABSENT if it is not shared. `competitors` and `shared_competitors` int64
    (queries,): the vectors that each rank is among, without the own one.
    """

    places: np.ndarray
    scores: np.ndarray
    ranks: np.ndarray
    shared_ranks: np.ndarray
    competitors: np.ndarray
    shared_competitors: np.ndarray


class Scan(NamedTuple):
    """Queries, with all that `Index.scan` needs beside the vectors; see `Index.search`."""

    queries: np.ndarray  # float32 (queries, width)
    k: int
    limits: np.ndarray | None  # float32 (queries,): the own item's score; None: no query has an own item
    below: np.ndarray | None
    shared: np.ndarray  # bool (vectors,)
    pair_query: np.ndarray  # int64 (pairs,): the number of a query
    pair_place: np.ndarray  # int64 (pairs,), sorted: the place of an item that the query's rank ignores

    def part(self, first: int, end: int) -> "Scan":
        """Return the scan of the vectors from a place on, up to another one; places count from the first."""
        here = slice(*np.searchsorted(self.pair_place, [first, end]))
        pairs = {"pair_query": self.pair_query[here], "pair_place": self.pair_place[here] - first}
        return self._replace(shared=self.shared[first:end], **pairs)


class Nearest(NamedTuple):
    """The nearest among some vectors: `places` and `scores` as in `Found`.

    `above` int64 (queries,): the vectors that do not score below the own item's; `shared_above`: the shared ones.
    """

    places: np.ndarray
    scores: np.ndarray
    above: np.ndarray
    shared_above: np.ndarray

    @classmethod
    def none(cls, queries: int, k: int) -> "Nearest":
        above = np.zeros((2, queries), dtype=np.int64)
        return cls(np.full((queries, k), -1), np.full((queries, k), -np.inf, np.float32), above[0], above[1])

    def add(self, other: "Nearest", first: int) -> None:
        """Add the nearest vectors among the next ones, whose places count from `first`."""
        both = np.concatenate([self.scores, other.scores], axis=1)
        where = np.concatenate([self.places, np.where(other.places < 0, -1, other.places + first)], axis=1)
        order = np.lexsort((where, -both), axis=1)[:, : self.scores.shape[1]]
        self.scores[:] = np.take_along_axis(both, order, axis=1)
        self.places[:] = np.take_along_axis(where, order, axis=1)
        self.above[:] += other.above
        self.shared_above[:] += other.shared_above


class Index:
    """The vectors of one folder, all by one model. A place is the number of a vector, counted across all shards."""

    def __init__(
        self,
        store: Store,
        prefix: str,
        model_version: str,
        memory_bytes: int = MEMORY_BYTES,
        sha256: str | None = None,
        device: torch.device = HOST,
        partitions: Collection[int] | None = None,
    ) -> None:
        """Open the folder, and compare every file with its checksum.

        Args:
            sha256: checksum of its manifest, from the release.
            device: that multiplies; the vectors stay on the host, and go to it in batches.
            partitions: the only ones that are read, so that places count among their vectors; None: all.

        Raises:
            MissingFolder, CorruptFolder: it is incomplete, differs from the release, or has another model's vectors.
        """
        manifest = read_manifest(store, prefix)
        expect_manifest(store, prefix, manifest, sha256)
        expect_vectors(store, prefix, manifest, model_version)
        if partitions is not None:
            files = tuple(each for n, of in layers_of(manifest).items() if n in partitions for each in of)
            manifest = manifest.model_copy(update={"files": files})
        parts = open_layers(manifest, open_files(store, prefix, VECTORS_KIND, manifest.files))
        self._parts = [*parts.values()]
        self.width = read_fact(store, prefix, "width", int)
        self.max_tokens = read_fact(store, prefix, "max_tokens", int)  # texts were truncated to this length
        counts = [part.items for part in self._parts]
        self._starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)  # the first place of each partition
        self.vectors = int(self._starts[-1])
        each = np.dtype("float16" if manifest.facts["type"] == "fp16" else "float32").itemsize
        fits = self.vectors * self.width * each <= memory_bytes
        self._kept = [as_matrix(part.table([VECTOR])[VECTOR]) for part in self._parts] if fits else None
        self._device = device

    def nearest(self, query: np.ndarray, k: int) -> tuple[Hit, ...]:
        """Return the `k` items with the highest cosine, best first.

        Args:
            query: float32 (width,), a unit vector.
        """
        found = self.search(query[None], k)
        return self.hits(found, [0], k)[0]

    def hits(self, found: Found, rows: Sequence[int], k: int) -> list[tuple[Hit, ...]]:
        """Return the `k` best hits of the queries `rows`, with their texts."""
        places = found.places[rows, :k]
        items = self.items(places.reshape(-1))
        return [
            tuple(
                Hit(score=round(float(score), 6), item_id=items[place].item_id, text=items[place].text)
                for place, score in zip(of_query.tolist(), scores, strict=True)
                if place >= 0
            )
            for of_query, scores in zip(places, found.scores[rows, :k], strict=True)
        ]

    def search(
        self,
        queries: np.ndarray,
        k: int,
        own: np.ndarray | None = None,
        below: np.ndarray | None = None,
        shared: np.ndarray | None = None,
        relevant: tuple[np.ndarray, np.ndarray] | None = None,
    ) -> Found:
        """Return the nearest vectors of each query, and the rank of its own item among all that are not relevant too.

        A vector with an equal score ranks before the own one, so that a collapsed model ranks badly, not perfectly. So
        does a vector whose score is NaN, and every vector if the own score is NaN.

        Args:
            queries: float32 (queries, width), unit vectors.
            own: int64 (queries,), the place of each query's own item; -1 without a vector.
            below: float32 (queries,): find only vectors with a lower score; missing hits score minus infinity. None: no
                limit.
            shared: bool (vectors,): True for items that another release holds too; None: no item.
            relevant: a query's number and the place of another item as relevant as its own, int64 (pairs,) each,
                ordered by place. Such an item is no miss: ranks ignore it. None: there is none.
        """
        count, k = len(queries), min(k, self.vectors)
        own = np.full(count, -1, dtype=np.int64) if own is None else own
        shared = np.zeros(self.vectors, dtype=bool) if shared is None else shared
        asked, ignored = (np.zeros(0, dtype=np.int64),) * 2 if relevant is None else relevant
        limits = np.einsum("qw,qw->q", queries, self.at(own)) if (own >= 0).any() else None
        nearest = self.scan(Scan(queries, k, limits, below, shared, asked, ignored))
        competitors = self.vectors - (own >= 0) - np.bincount(asked, minlength=count)
        of_both = int(shared.sum()) - (shared[own] & (own >= 0)) - np.bincount(asked[shared[ignored]], minlength=count)
        ranks = np.where(own < 0, ABSENT, nearest.above)
        shared_ranks = np.where((own < 0) | ~shared[own], ABSENT, nearest.shared_above)
        return Found(nearest.places, nearest.scores, ranks, shared_ranks, competitors, of_both)

    def scan(self, wanted: Scan) -> Nearest:
        """Multiply all vectors with the queries, and return the nearest."""
        best = Nearest.none(len(wanted.queries), wanted.k)

        def judge(start: int, scores: np.ndarray, first: int, both: np.ndarray) -> None:
            part = slice(start, start + len(scores))
            if wanted.limits is not None:
                lower = scores < wanted.limits[part, None] - EQUAL
                here = slice(*np.searchsorted(wanted.pair_place, [first, first + scores.shape[1]]))
                mine = (wanted.pair_query[here] >= start) & (wanted.pair_query[here] < start + len(scores))
                lower[wanted.pair_query[here][mine] - start, wanted.pair_place[here][mine] - first] = True
                best.above[part] += scores.shape[1] - np.count_nonzero(lower, axis=1)
                if both.any():
                    best.shared_above[part] += np.count_nonzero(both) - np.count_nonzero(lower[:, both], axis=1)
            if wanted.below is not None:
                scores[~(scores < wanted.below[part, None])] = -np.inf
            _improve(best.places[part], best.scores[part], scores, first)

        count = len(wanted.queries)
        with own_threads() as threads:
            each = threads.map if count > 1 else map  # a thread takes longer to start than one query's scores
            for first, batch in self._batches():
                both, vectors = wanted.shared[first : first + len(batch)], torch.from_numpy(batch).to(self._device)
                for start in range(0, count, BATCH_QUERIES):
                    scores = multiply(wanted.queries[start : start + BATCH_QUERIES], vectors).cpu().numpy()
                    parts = bands(scores, torch.get_num_threads())
                    list(each(lambda part: judge(*part), [(start + at, part, first, both) for at, part in parts]))
        return best

    def places_of(self, item_ids: Sequence[str]) -> np.ndarray:
        """Return the place of each item, int64 (items,); -1 without a vector."""
        distinct, which = np.unique(np.asarray(item_ids, dtype=object).astype(str), return_inverse=True)
        places = np.full(len(distinct), -1, dtype=np.int64)
        wanted = pa.array(distinct.tolist(), pa.string())
        for first, items in self.tables([ITEM_ID]):
            number = pc.index_in(items[ITEM_ID].combine_chunks(), value_set=wanted)
            rows = np.flatnonzero(number.is_valid().to_numpy(zero_copy_only=False))
            places[number.take(pa.array(rows)).to_numpy()] = first + rows
        return places[which] if len(distinct) else places

    def at(self, places: np.ndarray) -> np.ndarray:
        """Return the vectors at some places, float32 (places, width); zeros for the place -1."""
        found = np.zeros((len(places), self.width), dtype=np.float32)
        for first, vectors in self._batches():
            here = np.flatnonzero((places >= first) & (places < first + len(vectors)))
            found[here] = vectors[places[here] - first]
        return found

    def items(self, places: np.ndarray) -> dict[int, ListedItem]:
        """Return the items at some places. Raises CorruptFolder: a shard has fewer rows than its metadata says."""
        wanted = np.unique(places[places >= 0])
        found = {}
        for first, items in self.tables([ITEM_ID, TEXT], wanted):
            here = wanted[(wanted >= first) & (wanted < first + items.num_rows)]
            rows = items.take(pa.array(here - first)).to_pylist()
            found |= {
                place: ListedItem(item_id=row[ITEM_ID], text=row[TEXT])
                for place, row in zip(here.tolist(), rows, strict=True)
            }
        return found

    def _batches(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first place, float32 (vectors, width)) until all vectors are read."""
        for number, part in enumerate(self._parts):
            first = int(self._starts[number])
            if self._kept is not None:
                whole = self._kept[number]
                some: Iterator[np.ndarray] = (
                    whole[at : at + BATCH_VECTORS] for at in range(0, len(whole), BATCH_VECTORS)
                )
            else:
                some = (as_matrix(table[VECTOR]) for table in part.batches([VECTOR], BATCH_VECTORS))
            for vectors in some:
                yield first, vectors.astype(np.float32, copy=False)
                first += len(vectors)

    def tables(self, columns: Sequence[str], wanted: np.ndarray | None = None) -> Iterator[tuple[int, pa.Table]]:
        """Yield (first place, rows) of all groups of rows, or only of groups that hold one of the sorted places."""
        for part, start in zip(self._parts, self._starts.tolist(), strict=False):
            for first, rows, read in part.groups(columns):
                place = start + first
                if wanted is None or np.searchsorted(wanted, place) < np.searchsorted(wanted, place + rows):
                    yield place, read()

    def text_hashes(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first place, `hash_texts` of the items' texts, uint64) until all are read."""
        for first, table in self.tables([TEXT]):
            yield first, hash_texts(table[TEXT].to_pylist())


def _improve(places: np.ndarray, best: np.ndarray, scores: np.ndarray, first: int) -> None:
    """Merge `scores`, float32 (queries, vectors), into the best so far, in place; of equal ones the first count."""
    k, columns = best.shape[1], scores.shape[1]
    rows = np.flatnonzero((scores > best[:, -1:]).any(axis=1))
    if not len(rows) or not k:
        return
    scores = scores[rows]
    top = np.broadcast_to(np.arange(columns), scores.shape)
    if k < columns:
        top = np.argpartition(-scores, k, axis=1)[:, : k + 1]
        found = np.take_along_axis(scores, top, axis=1)
        last = found[:, k]  # the highest score that is left out, unless it is equal to a found one
        for row in np.flatnonzero((found[:, :k] == last[:, None]).any(axis=1) & (last > best[rows, -1])):
            higher, equal = (np.flatnonzero(compare(scores[row], last[row])) for compare in (np.greater, np.equal))
            top[row, :k] = np.concatenate([higher, equal])[:k]
        top = top[:, :k]
    both = np.concatenate([best[rows], np.take_along_axis(scores, top, axis=1)], axis=1)
    where = np.concatenate([places[rows], first + top], axis=1)
    order = np.lexsort((where, -both), axis=1)[:, :k]
    best[rows] = np.take_along_axis(both, order, axis=1)
    places[rows] = np.take_along_axis(where, order, axis=1)
