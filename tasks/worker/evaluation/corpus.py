"""The items for the measurement of all models, and the relevant items of each row; the first worker chooses both."""

import hashlib
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.training import HeadsConfig
from tasks.contracts.evaluation import PAIR, QUERY_KEY, QUERY_TRAINED
from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.workspace import CORPUS, KNOWN_PAIRS, RIGHT_ITEMS
from tasks.data.items import TEXT
from tasks.data.rows import ITEM, ITEM_ID, QUERY, ROW_ID
from tasks.foundation.errors import DataError
from tasks.worker.catalogue.choose import choose
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.evaluation.rows import MeasuredRows
from tasks.worker.model.relevant import Relevant, find_relevant, hash_queries, number_texts
from tasks.worker.process.job import Job
from tasks.worker.rows.holdout_read import pairs_of_queries

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


def find_known_pairs(rows: MeasuredRows, heads: HeadsConfig) -> pa.Table:
    """Return the distinct items that any row of the spans, training or holdout, pairs with the rows' queries.

    The pairs of the golden set are included.

    Returns:
        QUERY_KEY, int64, ITEM_ID, string, and QUERY_TRAINED, bool.
    """
    golden = rows.table.filter(pc.invert(rows.holdout))
    of_golden = {QUERY_KEY: hash_queries(golden[QUERY].to_pylist()), ITEM_ID: golden[ITEM_ID]}
    found = [
        pa.table(of_golden | {QUERY_TRAINED: pa.array([False] * golden.num_rows, pa.bool_())}),
        pairs_of_queries(rows.spans, np.unique(rows.facts[QUERY_KEY].to_numpy()), heads),
    ]
    distinct = pa.concat_tables(found).group_by([QUERY_KEY, ITEM_ID]).aggregate([(QUERY_TRAINED, "any")])
    return distinct.rename_columns([QUERY_KEY, ITEM_ID, QUERY_TRAINED])


def with_trained(rows: MeasuredRows, pairs: pa.Table) -> MeasuredRows:
    """Return the rows with the fact QUERY_TRAINED.

    Args:
        pairs: from `known_pairs`.
    """
    trained = pairs.filter(pairs[QUERY_TRAINED])[QUERY_KEY].combine_chunks()
    column = pc.is_in(rows.facts[QUERY_KEY], value_set=trained)
    return rows._replace(facts=rows.facts.append_column(QUERY_TRAINED, column))


def is_whole(job: Job, inputs: EvaluateInputs) -> bool:
    """Return True if the corpus holds every item of the catalogue, so that no second ranking is needed."""
    return inputs.catalogue.items <= job.config.evaluate.corpus_items


def choose_corpus(
    job: Job,
    accelerator: Accelerator,
    inputs: EvaluateInputs,
    rows: MeasuredRows,
    features: Sequence[str],
) -> pa.Table:
    """Return the whole catalogue; of a large one, the rows' own items and a sample independent of any model.

    Golden-set items that the catalogue lacks come last. The first worker chooses, and writes the items to the
    workspace, for the other workers and for people.
    """
    key = CORPUS.of(job.spec)
    if not inputs.catalogue.items:
        raise DataError(f"{job.store.uri}/{inputs.catalogue.prefix} has no live item to be found")
    if job.rank.is_main:
        own = () if is_whole(job, inputs) else sorted(set(rows.table[ITEM_ID].to_pylist()))
        chosen = choose(job.store, inputs.catalogue, own, job.config.evaluate.corpus_items, features)
        _write(job, key, _with_golden_items(chosen, rows))
    accelerator.barrier()
    return pq.read_table(job.shared.local(key))


def known_pairs(job: Job, accelerator: Accelerator, rows: MeasuredRows) -> pa.Table:
    """Return the pairs of `find_known_pairs`; the first worker looks them up and writes them for the others."""
    key = KNOWN_PAIRS.of(job.spec)
    if job.rank.is_main:
        _write(job, key, find_known_pairs(rows, job.config.heads))
    accelerator.barrier()
    return pq.read_table(job.shared.local(key))


def relevant_items(rows: MeasuredRows, pairs: pa.Table, corpus: pa.Table) -> Relevant:
    """Return the corpus items that are as relevant as a row's own item.

    Args:
        pairs: from `known_pairs`; pairs without an item in the corpus are skipped.
    """
    places = pc.index_in(pairs[ITEM_ID], value_set=corpus[ITEM_ID].combine_chunks()).fill_null(-1).to_numpy()
    there = places >= 0
    keys = pairs[QUERY_KEY].to_numpy()[there]
    texts = number_texts(corpus[TEXT].to_pylist())
    return find_relevant(rows.facts[QUERY_KEY].to_numpy(), texts, keys, places[there].astype(np.int64))


def live_relevant_items(job: Job, accelerator: Accelerator, inputs: EvaluateInputs, pairs: pa.Table) -> pa.Table:
    """Return ITEM_ID and TEXT of the pairs' live items, by item id; the first worker looks them up for the others.

    Args:
        pairs: from `known_pairs`.
    """
    key = RIGHT_ITEMS.of(job.spec)
    if job.rank.is_main:
        named = sorted(set(pairs[ITEM_ID].to_pylist()))
        _write(job, key, choose(job.store, inputs.catalogue, named, 0, ()).select([ITEM_ID, TEXT]))
    accelerator.barrier()
    return pq.read_table(job.shared.local(key))


def sample_rows(rows: MeasuredRows, count: int) -> np.ndarray:
    """Return places of `count` holdout rows whose item belongs to the query, int64: the rows with the lowest hashes."""
    pairs = np.flatnonzero(pc.and_(rows.holdout, rows.facts[PAIR]).to_numpy())
    ids = rows.facts[ROW_ID].to_pylist()
    lowest = sorted(pairs, key=lambda row: hashlib.sha256(ids[row].encode()).digest())[:count]
    return np.sort(np.array(lowest, dtype=np.int64))


def _with_golden_items(chosen: pa.Table, rows: MeasuredRows) -> pa.Table:
    golden = rows.table.filter(pc.invert(rows.holdout))
    new = golden.filter(pc.invert(pc.is_in(golden[ITEM_ID], value_set=chosen[ITEM_ID].combine_chunks())))
    if not new.num_rows:
        return chosen
    texts = dict(zip(new[ITEM_ID].to_pylist(), new[ITEM].to_pylist(), strict=True))
    items = sorted(texts)
    known = {ITEM_ID: items, TEXT: [texts[item] for item in items]}
    columns = [pa.array(known.get(field.name, [None] * len(items)), field.type) for field in chosen.schema]
    return pa.concat_tables([chosen, pa.table(columns, schema=chosen.schema)])


def _write(job: Job, key: str, table: pa.Table) -> None:
    out = io.BytesIO()
    pq.write_table(table, out)
    job.store.write(key, out.getvalue())
