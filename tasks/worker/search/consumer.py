"""Use a released model as its consumers do: the exported folder, opened with sentence-transformers.

A release is measured as its users see it: all its vectors are searched with holdout queries that this model embeds.
"""

import contextlib
import inspect
import json
import os
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow as pa

from infra.store.base import Store
from infra.store.manifest import naming_release, open_folder
from tasks.contracts.evaluation import QUERY_KEY
from tasks.contracts.references import ReleasedRef
from tasks.contracts.search import SharedSearch
from tasks.data.query_places import hash_queries
from tasks.data.rows import ITEM, ITEM_ID, QUERY, TEXT
from tasks.foundation.errors import CodeError, HostError
from tasks.quality.row_metrics import retrieval_metrics
from tasks.worker.model.features import FILE, FeatureTable
from tasks.worker.model.released_code import MODEL_KIND, needs_trust
from tasks.worker.model.relevant import RelevantTexts, hash_texts
from tasks.worker.process.fork_server import Ended, run_forked
from tasks.worker.process.threads import QUIET
from tasks.worker.search import encode_released
from tasks.worker.search.index import ABSENT, MEMORY_BYTES, Found, Index

forks: socket.socket | None = None  # to a process with the library alone, set by the warm parent
_LAST_LINES = 3  # lines of a failed process's output in the message


class Encoded(NamedTuple):
    """Vectors of the exported model, unchanged, float32 (entries, width); width 0 without an entry.

    `loading`: seconds in which its process loaded the library.
    """

    items: np.ndarray
    queries: np.ndarray
    loading: float


class Consumer:
    """Embeds queries with an exported model in this process."""

    def __init__(self, folder: Path) -> None:
        """Open the folder. Raises ConfigError: its code is not this installation's own."""
        from sentence_transformers import SentenceTransformer

        self._model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=needs_trust(folder))
        self._features = _features(folder).queries

    def queries(self, rows: pa.Table) -> np.ndarray:
        """Return vectors, float32 (rows, width), of the column `query` and the query features."""
        entries = cast(Any, _entries(rows, QUERY, self._features))
        return np.asarray(self._model.encode_query(entries, show_progress_bar=False), dtype=np.float32)


class Given(NamedTuple):
    """An exported model, and the entries to encode with it."""

    folder: Path
    queries: pa.Table  # the column `query`, and the query features
    items: pa.Table | None = None  # the column `text`, and the features
    entity: str | None = None  # the column that selects a text's prompt


def encode_apart(*given: Given) -> tuple[Encoded, ...]:
    """Encode with exported models in a fresh process, which has sentence-transformers but nothing of the pipeline.

    One process serves all models: if it can't be forked from one with the library, it takes seconds to start.

    Raises:
        ConfigError: the code in a folder is not this installation's own; nothing was opened.
        CodeError: a folder can't be opened, or can't encode its entries.
        HostError: the process was killed.
    """
    with tempfile.TemporaryDirectory(prefix="millrace-") as name:
        arguments, made = [], []
        for number, (folder, queries, items, entity) in enumerate(given):
            features = _features(folder)
            entries = {
                "trust": needs_trust(folder),
                "items": [] if items is None else _entries(items, TEXT, features.items),
                "queries": _entries(queries, QUERY, features.queries),
                "item_entities": _entities(items, entity),
                "query_entities": _entities(queries, entity),
            }
            path = Path(name) / f"entries-{number}.json"
            path.write_text(json.dumps(entries, default=str), encoding="utf-8")
            made.append(Path(name) / f"vectors-{number}.npz")
            arguments += [str(folder), str(path), str(made[-1])]
        _run_apart(arguments, name)
        return tuple(_read(path) for path in made)


def _run_apart(arguments: list[str], folder: str) -> None:
    """Run encode_released.py in a new process, in this folder. Raises like `encode_apart`."""
    environment = {**os.environ, **QUIET}
    ended = None
    if forks is not None:
        with contextlib.suppress(OSError):  # that process was killed, and stays so for later attempts
            ended = run_forked(forks, arguments=arguments, folder=folder, environment=environment)
    if ended is None:
        done = subprocess.run(
            [sys.executable, "-P", inspect.getfile(encode_released), *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            encoding="utf-8",
        )
        ended = Ended(done.returncode, done.stdout)
    models = " and ".join(arguments[::3])
    if ended.code < 0:
        raise HostError(f"the process that encoded with {models} was ended by signal {-ended.code}")
    if ended.code:
        why = " ".join(ended.output.strip().splitlines()[-_LAST_LINES:])
        raise CodeError(f"the exported model in {models} can't be used by a program of its own: {why}")


def _read(path: Path) -> Encoded:
    with np.load(path) as found:
        return Encoded(items=found["items"], queries=found["queries"], loading=found["loading"].item())


class _Features(NamedTuple):
    """Names of the item features, and the subset that queries have."""

    items: tuple[str, ...]
    queries: tuple[str, ...]


def _features(folder: Path) -> _Features:
    if not (folder / FILE).is_file():
        return _Features((), ())
    table = FeatureTable.model_validate_json((folder / FILE).read_text(encoding="utf-8"))
    items = (*table.numeric, *table.categorical)
    return _Features(items, tuple(name for name in items if name in table.query))


def _entities(table: pa.Table | None, column: str | None) -> list[str | None]:
    """Return the entity of each row, or None."""
    if table is None or column is None or column not in table.column_names:
        return [None] * (0 if table is None else table.num_rows)
    return table[column].cast(pa.string()).to_pylist()


def _entries(table: pa.Table, text: str, features: tuple[str, ...]) -> list[Any]:
    """Return strings, or dicts with features if the table has any of the model's."""
    there = [name for name in features if name in table.column_names]
    if not there:
        return cast(list[Any], table[text].to_pylist())
    columns = {"text": table[text].to_pylist(), **{name: table[name].to_pylist() for name in there}}
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


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
        folder, _ = open_folder(store, release.model_prefix, MODEL_KIND, release.model_sha256)
        index = Index(store, release.vectors_prefix, release.vectors_by, memory_bytes, release.vectors_sha256)
    return Consumer(folder), index


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
    relevant = other_relevant(index, queries, own, pairs)
    return Searched(
        index, index.search(vectors.reshape(len(own), index.width), NEAREST, own, shared=shared, relevant=relevant)
    )


def other_relevant(index: Index, queries: pa.Table, own: np.ndarray, pairs: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Return the argument `relevant` of `Index.search`."""
    places = index.places_of(pairs[ITEM_ID].to_pylist())
    items = index.items(np.concatenate([places, own]))
    held, known = places[places >= 0], own >= 0
    texts = hash_texts(items[place].text for place in [*held.tolist(), *own[known].tolist()])
    own_texts = hash_texts(queries[ITEM].to_pylist())
    own_texts[known] = texts[len(held) :]
    of_queries = hash_queries(queries[QUERY].to_pylist())
    right = RelevantTexts.of(of_queries, own_texts, (pairs[QUERY_KEY].to_numpy()[places >= 0], texts[: len(held)]))
    found = [np.zeros((2, 0), dtype=np.int64)]
    for first, keys in index.text_hashes():
        rows, at = right.pairs_of(keys)
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
