"""The recall of a search service with narrow vectors: the holdout queries, against all vectors of the release.

The queries are embedded by the released model, as consumers do; the service answers them as it answers consumers.
"""

import json
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from configs.schema.stages import AnyTarget
from infra.store.manifest import open_folder
from tasks.contracts.jobs import PublishInputs
from tasks.contracts.search import NarrowRecall
from tasks.data.query_places import hash_queries
from tasks.data.rows import ITEM_ID, QUERY
from tasks.foundation.errors import ConfigError, DataError
from tasks.quality.intervals import TWO_SIDED, Term, error_of, estimate
from tasks.quality.selection import Answers
from tasks.worker.process.job import Job

NEAREST = 10
MOST_HITS = 1000  # limit of one question, as many as pgvector's HNSW gives at most


class Holdout(NamedTuple):
    """Holdout queries about items of the release.

    `keys` int64 (queries,): hashes of their texts; `own`: ids of their items; `vectors` float32 (queries, width), unit
    vectors of the target's width; `found` bool (queries,): True if an exact search of the whole vectors has the own
    item among the nearest ten; `others`: ids of the items that are as relevant as the own.
    """

    keys: np.ndarray
    own: list[str]
    vectors: np.ndarray
    found: np.ndarray
    others: list[set[str]]


def search_holdout(job: Job, inputs: PublishInputs, target: AnyTarget) -> Holdout:
    """Embed the queries in a fresh process, and search all vectors of the release.

    Raises:
        MissingFolder, CorruptFolder: the rows, the model or the vectors are missing or damaged.
        ConfigError: the model is not trained at the target's width.
        DataError: there is no query about an item of the release.
    """
    # torch takes seconds to load, and only narrow targets need it.
    from tasks.worker.model.released_code import MODEL_KIND
    from tasks.worker.search.changes import holdout_queries, known_pairs
    from tasks.worker.search.consumer import Given, about_released, encode_apart, other_relevant
    from tasks.worker.search.index import Index

    folder, _ = open_folder(job.store, inputs.model, MODEL_KIND, inputs.model_sha256)
    about = json.loads((folder / "millrace.json").read_text(encoding="utf-8"))
    widths = (about["config"]["heads"]["contrastive"] or {}).get("matryoshka", [])
    if target.width is not None and target.width not in widths:
        trained = ", ".join(map(str, widths)) or "none"
        raise ConfigError(
            f"target {target.name}: the model {inputs.model_version} of release {inputs.release} is not trained at "
            f"{target.width} numbers; its widths below the whole are: {trained}"
        )
    index = Index(job.store, inputs.vectors, inputs.vectors_by, memory_bytes=0, sha256=inputs.vectors_sha256)
    queries = about_released(holdout_queries(job.store, inputs.rows, job.config), index)
    if not queries.num_rows:
        raise DataError(
            f"target {target.name}: release {inputs.release} has no holdout query about one of its items, so the "
            "recall of narrow vectors can't be measured; leave form and width out"
        )
    whole = encode_apart(Given(folder, queries, entity=job.config.features.entity))[0].queries
    ids = queries[ITEM_ID].to_pylist()
    own = index.places_of(ids)
    rows, places = other_relevant(index, queries, own, known_pairs(job.store, inputs.rows, job.config, queries))
    ranks = index.search(whole, NEAREST, own, relevant=(rows, places)).ranks
    items = index.items(places)
    others: list[set[str]] = [set() for _ in ids]
    for row, place in zip(rows.tolist(), places.tolist(), strict=True):
        others[row].add(items[place].item_id)
    cut = whole[:, : target.width]
    vectors = cut / np.linalg.norm(cut, axis=1, keepdims=True)
    return Holdout(hash_queries(queries[QUERY].to_pylist()), ids, vectors, ranks <= NEAREST, others)


def measure_narrow(queries: Holdout, nearest: Callable[[np.ndarray, int], list[str]]) -> NarrowRecall:
    """Compare the recall of a service with that of the whole vectors.

    Args:
        nearest: gives the ids of the nearest items to a vector, float32 (width,), best first.
    """
    found = []
    for vector, own, others in zip(queries.vectors, queries.own, queries.others, strict=True):
        hits = nearest(vector, min(NEAREST + len(others), MOST_HITS))
        found.append(own in [each for each in hits if each not in others][:NEAREST])
    values = tuple(np.asarray(each, dtype=np.float64) for each in (queries.found, found))
    answers = Answers(f"recall@{NEAREST}", queries.keys, np.array(queries.own), np.zeros(len(found)), values)
    term = Term(answers, (1.0, -1.0))
    low, high = error_of(term).bounds(estimate(term), TWO_SIDED)
    whole, narrow = (float(each.mean()) for each in values)
    return NarrowRecall(queries=len(found), recall_at_10=narrow, whole=whole, loss_low=low, loss_high=high)
