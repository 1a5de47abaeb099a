"""The measured rows: the holdout of all spans, sampled above `evaluate.max_rows`, and the golden set."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.training import HeadsConfig
from tasks.contracts.checkpoints import QUERY_AND_ITEM, HoldoutRule
from tasks.contracts.evaluation import COLUMN, GOLDEN, GROUP, LABEL, LABEL_CLASS, PAIR, QUERY_KEY, SPAN, UNSEEN
from tasks.contracts.jobs import EvaluateInputs
from tasks.data.holdout import unseen
from tasks.data.label_columns import label_classes, label_values, pair_mask
from tasks.data.rows import CORE, ITEM, ITEM_ID, QUERY, ROW_ID, group_columns, group_hashes, group_keys
from tasks.foundation.errors import DataError
from tasks.worker.model.relevant import hash_queries
from tasks.worker.process.job import Job
from tasks.worker.rows.holdout_read import HeldSpan, at_once


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
