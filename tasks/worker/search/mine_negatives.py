"""Mine hard negatives of training rows with a released model: the nearest items that are not relevant.

As TopK-PercPos of de Souza P. Moreira et al. 2024 (arXiv:2407.15831, section 3.3): an item must score below a share of
the score of the pair's own item, because nearer items are often unlabelled positives.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import torch

from configs.schema.training import NegativesConfig
from infra.store.base import Store
from tasks.contracts.jobs import report
from tasks.contracts.references import MinedRelease
from tasks.data.label_columns import feature_columns, pair_mask
from tasks.data.rows import ITEM, ITEM_ID, QUERY, TEXT
from tasks.foundation.errors import ConfigError
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.evaluation.models import LoadedModel, ModelSpec, open_model
from tasks.worker.model.embed import embed
from tasks.worker.model.features import Side
from tasks.worker.process.job import Job
from tasks.worker.search.index import MEMORY_BYTES, Index
from tasks.worker.training.holdout import encode_side
from tasks.worker.training.known_pairs import KnownPositives
from tasks.worker.training.row_keys import id_keys, text_keys


class ReleasedItems(NamedTuple):
    """The vectors of a release; keys of the item ids and texts by place, int64 (vectors,) each."""

    vectors: Index
    ids: np.ndarray
    texts: np.ndarray
    order: np.ndarray  # int64 (vectors,): places sorted by id key

    @classmethod
    def open(
        cls, store: Store, prefix: str, model_version: str, memory_bytes: int, device: torch.device, sha256: str | None
    ) -> "ReleasedItems":
        """Open the vectors; for arguments and errors see `Index`."""
        index = Index(store, prefix, model_version, memory_bytes, sha256, device)
        ids, texts = np.zeros(index.vectors, dtype=np.int64), np.zeros(index.vectors, dtype=np.int64)
        for first, items in index.tables([ITEM_ID, TEXT]):
            here = slice(first, first + items.num_rows)
            ids[here], texts[here] = id_keys(items[ITEM_ID]), text_keys(items[TEXT])
        return cls(index, ids, texts, np.argsort(ids, kind="stable"))

    def places_of(self, ids: np.ndarray) -> np.ndarray:
        """Return the place of each item, int64 (items,), by its id key; -1 without a vector."""
        if not len(self.order):
            return np.full(len(ids), -1, dtype=np.int64)
        at = np.minimum(np.searchsorted(self.ids, ids, sorter=self.order), len(self.order) - 1)
        places = self.order[at]
        return np.where(self.ids[places] == ids, places, -1)


_ODD = np.uint64(0x9E3779B97F4A7C15)


class RightItems:
    """The relevant items of some queries, by id and by text.

    An item of the release is relevant if its id is, or if a relevant item has its text, in rows or in the release.
    """

    def __init__(
        self, known: KnownPositives, released: ReleasedItems, queries: np.ndarray, ids: np.ndarray, texts: np.ndarray
    ) -> None:
        """Look up the relevant items of the pairs' queries, and add the items of the pairs themselves.

        Args:
            queries: int64 (pairs,), keys of the queries; `ids` and `texts` likewise of the items.
        """
        asked = np.unique(queries)
        whose, items = known.items.lists(asked)
        whose_text, of_rows = known.texts.lists(asked)
        whose, items = np.concatenate([asked[whose], queries]), np.concatenate([items, ids])
        places = released.places_of(items)
        there = places >= 0
        self._released = released
        self._sorted = np.unique(
            np.concatenate(
                [
                    _joined(whose, items),
                    _joined(whose[there], released.texts[places[there]]),
                    _joined(asked[whose_text], of_rows),
                    _joined(queries, texts),
                ]
            )
        )

    def has(self, queries: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Return bool: True if the item is relevant to the query, which must have been looked up.

        `queries` are int64 keys, `places` int64 places in the release; their shapes broadcast.
        """
        return self._found(queries, self._released.ids[places]) | self._found(queries, self._released.texts[places])

    def _found(self, queries: np.ndarray, items: np.ndarray) -> np.ndarray:
        wanted = _joined(queries, items)
        place = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        return self._sorted[place] == wanted


def _joined(queries: np.ndarray, items: np.ndarray) -> np.ndarray:
    """Return a hash of each pair, uint64. Both keys are uniform, so an odd factor is enough to mix them."""
    return queries.view(np.uint64) * _ODD + items.view(np.uint64)


def nearest_negatives(
    released: ReleasedItems, queries: np.ndarray, keys: np.ndarray, limits: np.ndarray, right: RightItems, count: int
) -> np.ndarray:
    """Return the places of the `count` nearest items of each query that score below its limit and are not relevant.

    Exact: the search goes deeper for queries whose nearest items are relevant.

    Args:
        queries: float32 (queries, width), unit vectors.
        keys: int64 (queries,), keys of the queries' texts.
        limits: float32 (queries,), upper limit of the cosine.

    Returns:
        int64 (queries, count), nearest first; -1 if fewer exist.
    """
    found = np.full((len(queries), count), -1, dtype=np.int64)
    left, depth = np.arange(len(queries)), 4 * count
    while len(left) and released.vectors.vectors:
        near = released.vectors.search(queries[left], depth, below=limits[left])
        there = np.isfinite(near.scores)
        wanted = there & ~right.has(keys[left, None], near.places)
        number = wanted.cumsum(axis=1)  # number of each wanted item in its row, from 1
        row, column = np.nonzero(wanted & (number <= count))
        found[left[row], number[row, column] - 1] = near.places[row, column]
        left = left[(number[:, -1] < count) & there[:, -1] & (depth < released.vectors.vectors)]
        depth *= 4
    return found


class Release(NamedTuple):
    """A released model on the device, and its items."""

    model: LoadedModel
    items: ReleasedItems


class Mined(NamedTuple):
    """`places` int64 (rows, per_query): places of the release's items, nearest first, then -1.

    `embedded`: number of texts that all workers embedded.
    """

    places: np.ndarray
    embedded: int


def open_release(job: Job, accelerator: Accelerator, release: MinedRelease) -> Release:
    """Return the released model on the device, and its vectors.

    Raises:
        StoreError: a part of the release is missing or damaged.
        ConfigError: the model needs a feature that the configuration does not name.
    """
    memory = MEMORY_BYTES // job.rank.local_world
    device = accelerator.ranking_device
    items = ReleasedItems.open(
        job.shared, release.vectors, release.model.of_items.version, memory, device, release.vectors_sha256
    )
    spec = ModelSpec(release.model.version, {}, release.model)
    model = open_model(job, accelerator, spec, None, items.vectors.max_tokens)
    assert model is not None, "only new weights may not be there"
    if missing := sorted(set(model.features) - set(feature_columns(job.config))):
        raise ConfigError(
            f"release {release.number} can't be mined for hard negatives: its model needs the feature {missing[0]!r}, "
            "which the configuration does not name; name it, or set heads.contrastive.negatives=null"
        )
    return Release(model, items)


def mine(
    job: Job,
    accelerator: Accelerator,
    release: Release,
    training: Iterable[pa.Table],
    known: KnownPositives,
    settings: NegativesConfig,
    rows: int,
) -> Mined:
    """Return the hard negatives of all training rows; the workers share the work, and each gets the whole result.

    Memory holds texts and scores of some thousand rows at a time.

    Args:
        known: the relevant items of each query, from all rows of the lineage so far.
        rows: number of training rows.
    """
    places = np.zeros((rows, settings.per_query), dtype=np.int64)  # + 1; other workers' rows are 0 in the sum
    start, embedded = 0, 0
    for number, table in enumerate(training):
        if number % job.rank.world == job.rank.index:
            mask = pair_mask(table, job.config.heads)
            pairs = table.filter(pa.array(mask))
            if pairs.num_rows:
                found, texts = _of_table(job, accelerator, release, pairs, known, settings)
                places[start + np.flatnonzero(mask)] = found + 1
                embedded += texts
        start += table.num_rows
        if job.rank.is_main:
            report("negatives", start, rows)
    together = accelerator.sum(torch.from_numpy(places)).numpy() - 1
    return Mined(together, int(accelerator.sum(torch.tensor(embedded)).item()))


def _of_table(
    job: Job,
    accelerator: Accelerator,
    release: Release,
    pairs: pa.Table,
    known: KnownPositives,
    settings: NegativesConfig,
) -> tuple[np.ndarray, int]:
    """Return the places of the negatives, int64 (pairs, per_query), and the number of texts embedded."""
    model, items = release
    columns = [QUERY, *model.parts.features.query_columns]
    first, which = _distinct(pairs, columns)
    queries = _embed(accelerator, model, pairs.take(pa.array(first)), "query")[which]
    ids = id_keys(pairs[ITEM_ID])
    own = items.places_of(ids)
    vectors = items.vectors.at(own)
    new = pairs.filter(pa.array(own < 0))  # items that the release does not have
    made = 0
    if new.num_rows:
        others, whose = _distinct(new, [ITEM, *model.features])
        vectors[own < 0] = _embed(accelerator, model, new.take(pa.array(others)), "item")[whose]
        made = len(others)
    scores = np.einsum("qw,qw->q", queries, vectors)
    limits = scores - (1.0 - settings.max_share) * np.abs(scores)  # below the score even if it is negative
    asked = text_keys(pairs[QUERY])
    right = RightItems(known, items, asked, ids, text_keys(pairs[ITEM]))
    found = nearest_negatives(items, queries, asked, limits.astype(np.float32), right, settings.per_query)
    return found, len(first) + made


def _embed(accelerator: Accelerator, model: LoadedModel, rows: pa.Table, side: Side) -> np.ndarray:
    tokens, features = encode_side(rows, side, model.parts, model.config)
    return embed(model.parts.of(side).model, accelerator, tokens, features, model.settings, shared=False)


def _distinct(rows: pa.Table, columns: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first row of each combination of values, int64, and the combination of each row, int64 (rows,)."""
    number: dict[tuple[object, ...], int] = {}
    first: list[int] = []
    which = np.zeros(rows.num_rows, dtype=np.int64)
    for row, values in enumerate(_values(rows, columns)):
        if values not in number:
            number[values] = len(first)
            first.append(row)
        which[row] = number[values]
    return np.array(first, dtype=np.int64), which


def _values(rows: pa.Table, columns: Sequence[str]) -> Iterator[tuple[object, ...]]:
    return zip(*(rows[name].to_pylist() for name in columns), strict=True)
