"""The items that rows find their own among, and which of them are as right: chosen once, by the first worker."""

import hashlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import torch

from tasks.contracts.evaluation import PAIR, QUERY_KEY
from tasks.contracts.jobs import EvaluateInputs
from tasks.data.items import TEXT
from tasks.data.rows import ITEM, ITEM_ID, QUERY, ROW_ID
from tasks.foundation.errors import DataError
from tasks.worker.accelerators import Accelerator
from tasks.worker.catalogue.choose import NEAR, choose
from tasks.worker.evaluation.contenders import Contender
from tasks.worker.evaluation.known_pairs import known_pairs
from tasks.worker.evaluation.rows import MeasuredRows
from tasks.worker.model.embed import embed
from tasks.worker.process.job import Job
from tasks.worker.ranking.relevant import Relevant, find_relevant, text_numbers
from tasks.worker.training.holdout import side_of
from tasks.worker.vectors.reuse import EarlierVectors, best

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

NEAREST = 10  # items of a query: as many as most metrics look at


def choose_corpus(
    job: Job,
    accelerator: Accelerator,
    inputs: EvaluateInputs,
    rows: MeasuredRows,
    champion: Contender | None,
    features: Sequence[str],
) -> pa.Table:
    """Return the whole catalogue, or of a large one the rows' own items, the champion's nearest and a sample.

    Items of the golden set that the catalogue lacks come after them. The first worker chooses, and writes the items to
    the workspace for the others, and for people.
    """
    key = f"{job.spec.attempt_prefix}/corpus.parquet"
    others = job.config.evaluate.corpus_items
    if not inputs.catalogue.items:
        raise DataError(f"{job.store.uri}/{inputs.catalogue.prefix} has no live item to be found")
    whole = inputs.catalogue.items <= others
    near = np.empty(0, dtype=np.uint64)
    if champion is not None and champion.released is not None and not whole:
        near = _near(job, accelerator, rows, champion, champion.released)
    if job.rank.is_main:
        own = () if whole else sorted(set(rows.table[ITEM_ID].to_pylist()))
        chosen = choose(job.store, inputs.catalogue, own, near, others, features)
        _write(job, key, _with_golden_items(chosen, rows))
    accelerator.barrier()
    return pq.read_table(job.shared.local(key))


def relevant_items(
    job: Job, accelerator: Accelerator, inputs: EvaluateInputs, rows: MeasuredRows, corpus: pa.Table
) -> Relevant:
    """Return which items are as right as a row's own, by all rows of the lineage, trained on or held out.

    The first worker looks up the rows' queries in the pairs that validate wrote, and writes those found for the others.
    """
    key = f"{job.spec.attempt_prefix}/known_pairs.parquet"
    keys = rows.facts[QUERY_KEY].to_numpy()
    if job.rank.is_main:
        _write(job, key, known_pairs(job, inputs, rows))
    accelerator.barrier()
    pairs = pq.read_table(job.shared.local(key))
    places = pc.index_in(pairs[ITEM_ID], value_set=corpus[ITEM_ID].combine_chunks()).fill_null(-1).to_numpy()
    there = places >= 0
    texts = text_numbers(corpus[TEXT].to_pylist())
    return find_relevant(keys, texts, pairs[QUERY_KEY].to_numpy()[there], places[there].astype(np.int64))


def some_rows(rows: MeasuredRows, count: int) -> np.ndarray:
    """Return places of holdout rows whose item belongs to the query, int64: `count`, those with the lowest hashes."""
    pairs = np.flatnonzero(pc.and_(rows.holdout, rows.facts[PAIR]).to_numpy())
    ids = rows.facts[ROW_ID].to_pylist()
    lowest = sorted(pairs, key=lambda row: hashlib.sha256(ids[row].encode()).digest())[:count]
    return np.sort(np.array(lowest, dtype=np.int64))


def _near(
    job: Job, accelerator: Accelerator, rows: MeasuredRows, champion: Contender, released: EarlierVectors
) -> np.ndarray:
    """Return the items that the champion finds nearest to some queries, as hashes of their ids, uint64."""
    queries = rows.table.take(pa.array(some_rows(rows, job.config.evaluate.corpus_items // 2 // NEAREST)))
    tokens, features = side_of(queries, QUERY, champion.parts, job.config)
    vectors = embed(champion.parts.model, accelerator, tokens, features, champion.settings)
    scores, places = released.nearest(vectors, NEAREST, job.share)
    together = [_of_all_workers(accelerator, part) for part in (scores, places)]
    scores, places = best(together[0], together[1], NEAREST)
    return np.unique(places[np.isfinite(scores)]).view(np.uint64)


def _of_all_workers(accelerator: Accelerator, part: np.ndarray) -> np.ndarray:
    """Return the columns of all workers side by side, (rows, columns of all)."""
    rank = accelerator.rank
    parts = torch.zeros(rank.world, *part.shape, dtype=torch.from_numpy(part).dtype)
    parts[rank.index] = torch.from_numpy(part)
    return np.hstack(list(accelerator.sum(parts).numpy()))


def _with_golden_items(chosen: pa.Table, rows: MeasuredRows) -> pa.Table:
    golden = rows.table.filter(pc.invert(rows.holdout))
    new = golden.filter(pc.invert(pc.is_in(golden[ITEM_ID], value_set=chosen[ITEM_ID].combine_chunks())))
    if not new.num_rows:
        return chosen
    texts = dict(zip(new[ITEM_ID].to_pylist(), new[ITEM].to_pylist(), strict=True))
    items = sorted(texts)
    known = {ITEM_ID: items, TEXT: [texts[item] for item in items], NEAR: [False] * len(items)}
    columns = [pa.array(known.get(field.name, [None] * len(items)), field.type) for field in chosen.schema]
    return pa.concat_tables([chosen, pa.table(columns, schema=chosen.schema)])


def _write(job: Job, key: str, table: pa.Table) -> None:
    out = io.BytesIO()
    pq.write_table(table, out)
    job.store.write(key, out.getvalue())
