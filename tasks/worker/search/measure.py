"""Measure a release as its users see it: search all its vectors with holdout queries embedded by the exported model."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from infra.store.base import Store
from infra.store.manifest import expect_manifest, open_folder
from infra.store.soundness import naming_release
from tasks.contracts.evaluation import QUERY_KEY
from tasks.contracts.references import ReleasedRef
from tasks.contracts.search import SharedSearch
from tasks.data.items import TEXT
from tasks.data.rows import ITEM, ITEM_ID, QUERY
from tasks.quality.row_metrics import retrieval_metrics
from tasks.worker.model.relevant import RelevantTexts, hash_queries, hash_texts
from tasks.worker.search.consumer import Consumer
from tasks.worker.search.index import ABSENT, MEMORY_BYTES, Found, Index

MODEL_KIND = "model"
NEAREST = 10  # hits kept per query
ONE_OF_TWO_BYTES = 2**28  # bytes of vectors in memory per release, if two are compared


@dataclass(frozen=True)
class Searched:
    """Search results of one release for the holdout queries."""

    index: Index
    found: Found

    @property
    def metrics(self) -> dict[str, float]:
        """Ranking metrics over all vectors; an item without a vector counts as not found. Empty without a query."""
        return retrieval_metrics(self.found.ranks, self.found.competitors)

    def hit_ids(self) -> list[list[str]]:
        """Return the ids of the nearest items of each query."""
        items = self.index.items(self.found.places.reshape(-1))
        return [[items[place].item_id for place in of_query if place >= 0] for of_query in self.found.places.tolist()]


def open_released(store: Store, release: ReleasedRef, memory_bytes: int = MEMORY_BYTES) -> tuple[Consumer, Index]:
    """Open model and vectors of a release. Raises MissingFolder, CorruptFolder: one is missing or damaged."""
    with naming_release(release.number):
        folder = released_folder(store, release)
        index = Index(store, release.vectors_prefix, release.model_version, memory_bytes, release.vectors_sha256)
    return Consumer(folder), index


def released_folder(store: Store, release: ReleasedRef) -> Path:
    """Return the folder of a release's model. Raises MissingFolder, CorruptFolder: it is missing or damaged."""
    folder, manifest = open_folder(store, release.model_prefix, MODEL_KIND)
    expect_manifest(store, release.model_prefix, manifest, release.model_sha256)
    return folder


def about_released(queries: pa.Table, index: Index) -> pa.Table:
    """Return the queries whose item has a vector; evaluate also leaves out rows about deleted items."""
    return queries.filter(pa.array(index.places_of(queries[ITEM_ID].to_pylist()) >= 0))


def search(
    index: Index, queries: pa.Table, vectors: np.ndarray, pairs: pa.Table, shared: np.ndarray | None = None
) -> Searched:
    """Search all vectors with the queries; items as relevant as a query's own are no miss, as in evaluate.

    Args:
        queries: a table from `holdout_queries`.
        vectors: the exported model's vectors of the queries, float32 (queries, width).
        pairs: from `known_pairs`.
        shared: see `Index.search`.
    """
    own = index.places_of(queries[ITEM_ID].to_pylist())
    relevant = _other_relevant(index, queries, own, pairs)
    return Searched(
        index, index.search(vectors.reshape(len(own), index.width), NEAREST, own, shared=shared, relevant=relevant)
    )


def _other_relevant(index: Index, queries: pa.Table, own: np.ndarray, pairs: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return the argument `relevant` of `Index.search`."""
    places = index.places_of(pairs[ITEM_ID].to_pylist())
    items = index.items(np.concatenate([places, own]))
    held, known = places[places >= 0], own >= 0
    texts = hash_texts(items[place].text for place in [*held.tolist(), *own[known].tolist()])
    own_texts = hash_texts(queries[ITEM].to_pylist())
    own_texts[known] = texts[len(held) :]
    keys = hash_queries(queries[QUERY].to_pylist())
    right = RelevantTexts.of(keys, own_texts, (pairs[QUERY_KEY].to_numpy()[places >= 0], texts[: len(held)]))
    found = [np.zeros((2, 0), dtype=np.int64)]
    for first, table in index.tables([TEXT]):
        rows, at = right.pairs_of(table[TEXT].to_pylist())
        found.append(np.stack([rows, first + at]))
    rows, at = np.concatenate(found, axis=1)
    others = np.flatnonzero(at != own[rows])
    others = others[np.argsort(at[others], kind="stable")]
    return rows[others], at[others]


def compare_models(before: Searched, after: Searched, items: int) -> SharedSearch:
    """Compare the metrics of two models over the items that both releases hold.

    Args:
        items: number of these items.
    """
    ranks = [each.found.shared_ranks for each in (before, after)]
    among = (ranks[0] != ABSENT) & (ranks[1] != ABSENT)
    competitors = np.minimum(before.found.shared_competitors, after.found.shared_competitors)
    metrics = [retrieval_metrics(each[among], competitors[among]) for each in ranks]
    return SharedSearch(items=items, queries=int(among.sum()), metrics_before=metrics[0], metrics_after=metrics[1])
