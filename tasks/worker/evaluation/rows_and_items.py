"""The measured rows of holdout and golden set, and the items among which all models rank them.

The first worker chooses the items, and finds the relevant items of each row.
"""

import hashlib
import io
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.training import HeadsConfig
from tasks.contracts.evaluation import (
    COLUMN,
    GOLDEN,
    GROUP,
    LABEL,
    LABEL_CLASS,
    PAIR,
    QUERY_KEY,
    QUERY_TRAINED,
    SPAN,
    UNSEEN,
)
from tasks.contracts.jobs import EvaluateInputs
from tasks.contracts.references import QUERY_AND_ITEM, HoldoutRule
from tasks.contracts.workspace import CORPUS, KNOWN_PAIRS, RIGHT_ITEMS
from tasks.data.holdout import unseen
from tasks.data.label_columns import label_classes, label_values, pair_mask
from tasks.data.query_places import hash_queries
from tasks.data.rows import CORE, ITEM, ITEM_ID, QUERY, ROW_ID, TEXT, group_columns, group_hashes, group_keys
from tasks.foundation.errors import DataError
from tasks.worker.catalogue.records import choose
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model.relevant import Relevant, find_relevant, number_texts
from tasks.worker.process.job import Job
from tasks.worker.rows.holdout import HeldSpan, at_once, pairs_of_queries


def sample_sizes(there: Sequence[int], most: int) -> list[int]:
    """Return the sample size of each span, at most `most` in all; a higher `most` only adds rows.

    The newest span gets up to half, the others share the rest equally; rows that one span lacks go to the others.

    Args:
        there: holdout rows of each span, oldest first.
    """
    *earlier, newest = there
    own = min(newest, max(most - most // 2, most - sum(earlier)))
    return [*_shared(earlier, most - own), own]


def _shared(there: Sequence[int], rows: int) -> list[int]:
    """Split `rows` equally, each share at most the span's count; the remainder goes to the last spans."""
    found, left = [0] * len(there), min(rows, sum(there))
    while left:
        wanting = [at for at, count in enumerate(there) if count > found[at]]
        each, over = divmod(left, len(wanting))
        for number, at in enumerate(reversed(wanting)):
            more = min(there[at] - found[at], each + (number < over))
            found[at] += more
            left -= more
    return found


pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


class MeasuredRows(NamedTuple):
    """Rows for the measurement: `table` has the core columns and the models' features.

    `facts` has, for the same rows, the columns of the row results (tasks/contracts/evaluation.py) without the models'
    answers.
    """

    table: pa.Table
    facts: pa.Table
    there: int = 0  # holdout rows of the spans; the measured rows may be a sample
    spans: tuple[HeldSpan, ...] = ()  # sources of the rows, oldest first
    golden_trained: int = 0  # golden-set rows with the same texts as a training row of the spans

    def where(self, mask: pa.ChunkedArray) -> Self:
        """Return the rows with a true mask."""
        return self._replace(table=self.table.filter(mask), facts=self.facts.filter(mask))

    @property
    def holdout(self) -> pa.ChunkedArray:
        """A bool for each row: True for the holdout, False for the golden set."""
        return pc.not_equal(self.facts[SPAN], GOLDEN)


def read_holdout(job: Job, inputs: EvaluateInputs, features: Sequence[str]) -> MeasuredRows:
    """Return the holdout rows of all spans, written by validate, or a sample of `evaluate.max_rows` by a stable hash.

    Training rows are not read.

    Raises:
        DataError: the spans have no holdout row, or lack a feature.
        MissingFolder, CorruptFolder: a span's holdout rows are missing or damaged.
    """
    tables, facts, rule = [], [], HoldoutRule.of(job.config.evaluate, inputs.rows)
    spans = tuple(at_once(lambda ref: HeldSpan(job.shared, ref, rule.measured), inputs.rows))
    there = at_once(HeldSpan.count, spans)
    shares = list(zip(spans, sample_sizes(there, job.config.evaluate.max_rows), strict=True))
    for span, held in zip(spans, at_once(lambda share: share[0].rows(features, share[1]), shares), strict=True):
        tables.append(held.select([*CORE, *dict.fromkeys(features)]))
        others = [name for name in held.column_names if name not in CORE]
        facts.append(facts_of(held, span.ref.span.name, job.config.heads, others, rule))
    if not any(table.num_rows for table in tables):
        rows = sum(ref.rows for ref in inputs.rows)
        raise DataError(
            f"no holdout row among the {rows} rows up to span {job.spec.span.name}; evaluate after more spans, or "
            "begin a new lineage with a higher share: --set lineage=NAME --set evaluate.holdout_share=SHARE"
        )
    return MeasuredRows(_joined(tables), _joined(facts), sum(there), spans)


def with_golden_set(job: Job, rows: MeasuredRows, key: str | None) -> MeasuredRows:
    """Append the rows of the golden set, which have neither labels nor features."""
    if key is None:
        return rows
    golden = pq.read_table(job.shared.local(key)).select([ROW_ID, QUERY, ITEM, ITEM_ID])
    trained = _trained(rows.spans, golden, key)
    for field in rows.table.schema:
        if field.name not in golden.column_names:
            golden = golden.append_column(field, pa.nulls(golden.num_rows, field.type))
    golden = golden.select(rows.table.column_names)
    facts = facts_of(golden, GOLDEN, job.config.heads, ())
    pairs = pa.array([True] * golden.num_rows)  # if only positives are pairs, rows without labels would not be
    facts = facts.set_column(facts.column_names.index(PAIR), PAIR, pairs)
    table = pa.concat_tables([rows.table, golden])
    return rows._replace(table=table, facts=_joined([rows.facts, facts]), golden_trained=trained)


def _trained(spans: Sequence[HeldSpan], golden: pa.Table, key: str) -> int:
    """Count golden-set rows with the same texts as a training row.

    Spans validated with this golden set have no such row, so only the other spans are searched.
    """
    texts = group_hashes(golden, QUERY_AND_ITEM)
    found = np.zeros(len(texts), dtype=bool)
    for trained in at_once(lambda span: span.trained(texts), [span for span in spans if span.kept_out != key]):
        found |= trained
    return int(found.sum())


def facts_of(
    rows: pa.Table, span: str, heads: HeadsConfig, others: Sequence[str], rule: HoldoutRule | None = None
) -> pa.Table:
    """Return the row results' columns for rows, without the models' answers.

    Args:
        rule: rows with the same value of its group's column hang together; else rows with the same query.
            None: the golden set, which no rule holds out.
    """
    keys = hash_queries(rows[QUERY].to_pylist())
    group = rule.group if rule else QUERY
    by_column = ITEM not in group_columns(group) and QUERY not in group_columns(group)
    columns = {
        ROW_ID: rows[ROW_ID],
        SPAN: pa.array([span] * rows.num_rows, pa.string()),
        QUERY_KEY: pa.array(keys),
        GROUP: pa.array(hash_queries(group_keys(rows, group)) if by_column else keys),
        ITEM_ID: rows[ITEM_ID],
        UNSEEN: pa.array(unseen(rows, rule) if rule else np.zeros(rows.num_rows, dtype=bool)),
        PAIR: pa.array(pair_mask(rows, heads)),
        LABEL_CLASS: pa.array(label_classes(rows, heads).astype(np.int8)),
    }
    columns |= {f"{LABEL}{name}": pa.array(label_values(rows, head)) for name, head in heads.of_labels.items()}
    return pa.table(columns | {f"{COLUMN}{name}": rows[name].cast(pa.string()) for name in others})


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    return pa.concat_tables(tables, promote_options="permissive")


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
