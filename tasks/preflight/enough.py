"""The answer to "is this enough?" for a planned run: rows, pairs, steps, held-out queries, time, and its gates' sight.

Rows are counted as ingested, before validate leaves out bad rows and near-duplicates, so all numbers are approximate.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
from pydantic import Field

from configs.schema.config import Config
from configs.schema.gates import GateConfig
from infra.store.base import Store
from infra.store.manifest import open_entry, open_manifest, read_manifest
from tasks.contracts.evaluation import FewRows, Role, Verdict, few_rows
from tasks.contracts.outcomes import EvaluateOutcome
from tasks.contracts.references import QUERY_AND_ITEM, HoldoutRule, RowsRef, SpanRef
from tasks.contracts.runs import RunPlan
from tasks.data.files.sources import source_path
from tasks.data.holdout import held_out, trainable, unseen
from tasks.data.join import Join
from tasks.data.label_columns import label_classes, pair_mask, with_labels
from tasks.data.layers import Layers, layers_of
from tasks.data.rows import (
    BATCH_ROWS,
    CATALOGUE_KIND,
    FEED_KIND,
    ITEM,
    ITEM_ID,
    LABEL,
    QUERY,
    SPAN_KIND,
    group_columns,
    has_ids_alone,
    normal_text,
)
from tasks.data.span_versions import list_feeds
from tasks.foundation.errors import StoreError
from tasks.foundation.records import Record
from tasks.judging.golden_set import GoldenRow, read_golden_set
from tasks.preflight.checks import window_join
from tasks.quality.sight import Sight, of_parts, sight
from tasks.runs.catalogues import bases
from tasks.runs.results import Judgement
from tasks.runs.run import Run
from tasks.runs.snapshot import Snapshot

READ_ROWS = 100_000  # rows of a window that are read, in about a second; more are estimated from these
BYTES_OF_TOKEN = 3.0  # UTF-8 bytes of a token: English has 3 to 5 by the vocabulary, a Chinese sign is 3
SHOWN_ITEMS = 3  # unknown items of the golden set that are named
MARKS = 2  # tokens at the begin and the end of each text

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers


class Enough(Record):
    """The expected amounts of a run, before validate leaves out bad rows and near-duplicates."""

    rows: int = Field(description="ingested rows of the window")
    rows_read: int = Field(description="rows that were read; if fewer than `rows`, other numbers are scaled from them")
    rows_unusable: int = Field(
        description="rows without a query or an item, or with an event that validate.events does not name"
    )
    bad_as_hits: int = Field(
        description="rows trained as hits, though their label is 0, or at most heads.classification.negative_max"
    )
    labels: tuple[float, float] | None = Field(
        description="lowest and highest label of the rows that were read; null: no row has one"
    )
    training_rows: int = Field(description="rows of the window that are trained on, with the replayed ones")
    training_pairs: int = Field(description="training rows that are pairs; others teach heads of labels only")
    steps: int = Field(description="training steps")
    held_pairs: int = Field(description="held-out pairs of the window")
    held_queries: int = Field(description="distinct queries of these pairs")
    unseen_queries: int = Field(description="unseen ones among `held_queries`: training has no row of them")
    earlier_queries: int = Field(description="held-out queries of earlier spans, which are measured too")
    golden_items: int = Field(description="distinct items of the golden set; 0 without one")
    golden_unknown: int | None = Field(
        description="golden items that neither the spans nor the catalogue nor an item feed have; null: not readable"
    )
    golden_unknown_first: tuple[str, ...] = Field(description="texts of the first of these")
    items: int = Field(description="distinct items of the window")
    tokens_a_row: float = Field(description="expected tokens of a row's texts in a batch")
    few: tuple[FewRows, ...] = Field(
        default=(), description="spans of the window with far fewer rows than usual (validate.before.missing)"
    )
    join: Join | None = Field(
        default=None, description="ids of the window's rows of ids alone in the item feed; null: no such rows"
    )
    gates: tuple[Sight, ...] = Field(description="smallest loss that each gate can see")


class _Counts(NamedTuple):
    """Counts of the rows that were read."""

    rows: int = 0
    unusable: int = 0
    bad: int = 0
    labels: tuple[float, float] | None = None
    training: int = 0
    pairs: int = 0
    held: int = 0
    held_pairs: int = 0
    queries: frozenset[str] = frozenset()
    newest_queries: frozenset[str] = frozenset()
    unseen: frozenset[str] = frozenset()  # a part of `queries`
    items: frozenset[str] = frozenset()
    tokens: float = 0.0  # in the texts of usable rows


def enough(store: Store, plan: RunPlan) -> Enough:
    """Return the expected amounts of a run; writes nothing.

    Raises:
        CorruptFolder, MissingFolder: a span is damaged or gone.
        ConfigError, DataError: the golden set can't be read.
    """
    config, rule = plan.config, HoldoutRule.of(plan.config.evaluate, plan.history)
    rows = [int(read_manifest(store, span.prefix).facts["rows"]) for span in plan.window]
    named = {span.name: count for span, count in zip(plan.window, rows, strict=True)}
    known = {ref.span.name: ref.rows for ref in plan.history} | named
    seen = _counts(store, plan.window, rows, rule, config)
    scale = sum(rows) / max(seen.rows, 1)
    own, pairs, held_pairs, queries, newest = (
        round(scale * count)
        for count in (seen.training, seen.pairs, seen.held_pairs, len(seen.queries), len(seen.newest_queries))
    )
    training = own + _replayed(config, plan.history, sum(rows), own)
    judgement = _last_judgement(store, plan.history)
    earlier = _earlier_queries(store, plan.history, rule, len(seen.queries) / max(seen.held, 1))
    whole = min(earlier + queries, config.evaluate.max_rows)
    unseen_share = len(seen.unseen) / max(len(seen.queries), 1)
    golden = read_golden_set(source_path(config.evaluate.golden)) if config.evaluate.golden is not None else []
    unknown = _unknown_items(store, plan, golden)
    return Enough(
        rows=sum(rows),
        rows_read=seen.rows,
        rows_unusable=round(scale * seen.unusable),
        bad_as_hits=round(scale * seen.bad),
        labels=seen.labels,
        training_rows=training,
        training_pairs=round(pairs * training / max(own, 1)),
        steps=math.ceil(training / config.train.batch_rows) * config.train.epochs,
        held_pairs=held_pairs,
        held_queries=queries,
        unseen_queries=round(queries * unseen_share),
        earlier_queries=earlier,
        golden_items=len({row.item_id for row in golden}),
        golden_unknown=None if unknown is None else len(unknown),
        golden_unknown_first=tuple((unknown or ())[:SHOWN_ITEMS]),
        items=round(scale * len(seen.items)),
        few=tuple(each for each in few_rows(known, config.validate_.before.missing.warn) if each.span in named),
        join=window_join(store, plan.window),
        tokens_a_row=round(seen.tokens / max(seen.rows - seen.unusable, 1), 3),
        gates=tuple(
            _sight(part, golden, whole, newest, unseen_share, judgement)
            for gate in config.evaluate.gates
            for part in of_parts(gate)
        ),
    )


def _counts(store: Store, window: Sequence[SpanRef], rows: Sequence[int], rule: HoldoutRule, config: Config) -> _Counts:
    found, events = _Counts(), config.validate_.events
    for span, there in zip(window, rows, strict=True):
        most = math.ceil(READ_ROWS * there / max(sum(rows), READ_ROWS))
        newest: frozenset[str] = frozenset()
        for table in _read(store, span, rule.group, events.column if events else None, most):
            in_feed = not set(group_columns(rule.group)) <= set(table.column_names)
            at = rule.model_copy(update={"group": QUERY_AND_ITEM}) if in_feed else rule
            known = table.filter(pc.and_(pc.is_valid(table[QUERY]), pc.is_valid(table[ITEM])))
            known = with_labels(known, events).rows if events else known
            is_pair = pair_mask(known, config.heads)
            bad = label_classes(known, config.heads) == 0
            if config.heads.classification is None:
                bad = known[LABEL].to_numpy() == 0.0
            training, held = trainable(known, at), held_out(known, at)
            texts = known[QUERY].filter(pa.array(held & is_pair)).to_pylist()
            newest |= frozenset(map(normal_text, texts))
            alone = known[QUERY].filter(pa.array(unseen(known, at) & is_pair)).to_pylist()
            found = found._replace(
                rows=found.rows + table.num_rows,
                unusable=found.unusable + table.num_rows - known.num_rows,
                bad=found.bad + int(np.sum(bad & is_pair)),
                labels=_range([*(found.labels or ()), *known[LABEL].drop_null().to_pylist()]),
                training=found.training + int(training.sum()),
                pairs=found.pairs + int(np.sum(training & is_pair)),
                held=found.held + int(held.sum()),
                held_pairs=found.held_pairs + len(texts),
                unseen=found.unseen | frozenset(map(normal_text, alone)),
                items=found.items | frozenset(known[ITEM_ID].to_pylist()),
                tokens=found.tokens + _tokens(known, config, ids_alone=has_ids_alone(store, span)),
            )
        found = found._replace(queries=found.queries | newest, newest_queries=newest)
    return found


def _range(labels: Sequence[float]) -> tuple[float, float] | None:
    return (min(labels), max(labels)) if labels else None


def _tokens(rows: pa.Table, config: Config, ids_alone: bool) -> float:
    """Return the expected tokens of the rows' texts in a batch, each item with its hard negatives."""
    most, contrastive = config.train.max_tokens, config.heads.contrastive
    items = 1 + (contrastive.negatives.per_query if contrastive and contrastive.negatives else 0)

    def of(column: str, longest: int) -> float:
        sizes = pc.binary_length(rows[column]).to_numpy()
        return float(np.minimum(sizes / BYTES_OF_TOKEN + MARKS, longest).sum())

    item = float(rows.num_rows * most.item) if ids_alone else of(ITEM, most.item)
    return of(QUERY, most.query) + items * item


def _read(store: Store, span: SpanRef, group: str, event: str | None, most: int) -> Iterator[pa.Table]:
    """Yield the first `most` rows of an ingested span; rows of ids alone have the id as the item's text."""
    manifest, alone = open_manifest(store, span.prefix, SPAN_KIND), has_ids_alone(store, span)
    wanted = dict.fromkeys([QUERY, ITEM, ITEM_ID, LABEL, *group_columns(group), *([event] if event else [])])
    for entry in manifest.files:
        with pq.ParquetFile(open_entry(store, span.prefix, entry), pre_buffer=False) as file:
            columns = [name for name in wanted if name in file.schema_arrow.names]
            for batch in file.iter_batches(BATCH_ROWS, columns=columns):
                table = pa.Table.from_batches([batch]).slice(0, most)
                if alone:
                    table = table.set_column(table.schema.get_field_index(ITEM), ITEM, table[ITEM_ID])
                yield table
                most -= table.num_rows
                if most <= 0:
                    return


def _replayed(config: Config, history: Sequence[RowsRef], rows: int, training: int) -> int:
    """Return the earlier rows that `train.replay` adds."""
    share = config.train.replay
    wanted = min(rows * share / (1 - share), sum(ref.rows for ref in history))
    return round(wanted * training / max(rows, 1))


def _earlier_queries(store: Store, history: Sequence[RowsRef], rule: HoldoutRule, queries_a_row: float) -> int:
    """Return the held-out queries of earlier spans, by the row counts of their holdouts."""
    held = 0
    for ref in history:
        try:
            known = read_manifest(store, ref.held).facts.get("rows_in") if ref.held else None
        except StoreError:  # pruned or damaged: an estimate does not need it
            known = None
        held += sum(known) if known else round(ref.rows * rule.measured)
    return round(held * queries_a_row)


def _last_judgement(store: Store, history: Sequence[RowsRef]) -> Judgement | None:
    """Return the judgement of the lineage's last run; None without a readable one."""
    return Run(Snapshot(store), history[-1].run_key).judgement if history else None


def _unknown_items(store: Store, plan: RunPlan, golden: Sequence[GoldenRow]) -> list[str] | None:
    """Return the unknown items of the golden set; None if a catalogue or a feed is damaged."""
    try:
        return _found_nowhere(store, plan, golden) if golden else []
    except StoreError:
        return None


def _found_nowhere(store: Store, plan: RunPlan, rows: Iterable[GoldenRow]) -> list[str]:
    """Return the texts of items, by id, that no span of the run, no catalogue before it and no item feed has.

    Such an item is still measured, with the text of the file. Sources are read until all items are found.

    Raises:
        StoreError: the release, a catalogue, a span or a feed is not readable.
    """
    left = {row.item_id: row.item for row in rows}
    catalogues = bases(store, plan)
    spans = plan.window if catalogues else (*(ref.span for ref in plan.history), *plan.window)
    folders = itertools.chain(
        ((span.prefix, SPAN_KIND) for span in reversed(spans)),
        ((catalogue.prefix, CATALOGUE_KIND) for catalogue in catalogues),
        ((feed.prefix, FEED_KIND) for feed in list_feeds(store)),
    )
    for ids in itertools.chain.from_iterable(_ids_in(store, prefix, kind) for prefix, kind in folders):
        for found in ids.filter(pc.is_in(ids, value_set=pa.array(left, pa.string()))).unique().to_pylist():
            del left[found]
        if not left:
            break
    return list(left.values())


def _ids_in(store: Store, prefix: str, kind: str) -> Iterator[pa.Array]:
    """Yield the item ids of a folder, string."""
    manifest = open_manifest(store, prefix, kind)
    if kind == CATALOGUE_KIND:
        for files in layers_of(manifest).values():
            layers = Layers.open([open_entry(store, prefix, entry) for entry in files])
            for items in layers.batches([ITEM_ID], BATCH_ROWS):
                yield items[ITEM_ID].combine_chunks().cast(pa.string())
        return
    for entry in manifest.files:
        if entry.name.endswith(".parquet"):
            with pq.ParquetFile(open_entry(store, prefix, entry), pre_buffer=False) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=[ITEM_ID]):
                    yield batch.column(0).cast(pa.string())


def _sight(
    gate: GateConfig,
    golden: Sequence[GoldenRow],
    whole: int,
    newest: int,
    unseen_share: float,
    judgement: Judgement | None,
) -> Sight:
    of_part = {"unseen": unseen_share, "seen": 1 - unseen_share}.get(gate.queries, 1.0)
    queries: int | None = round(of_part * (newest if gate.span is not None else whole))
    if gate.slice is not None:
        queries = None
    elif gate.rows == "golden":
        queries = len({row.query for row in golden})
    value = _last_value(gate, judgement.outcome) if judgement is not None else None
    return sight(gate, queries, _verdict_of(gate, judgement), value)


def _last_value(gate: GateConfig, outcome: EvaluateOutcome) -> float | None:
    """Return the metric of the last challenger on the gate's queries."""
    found = outcome.by_queries.get(Role.challenger)
    parts = {"unseen": found.unseen, "seen": found.seen} if found is not None else {}
    part = parts.get(gate.queries)
    return (part.metrics if part is not None else outcome.challenger).get(gate.metric)


def _verdict_of(gate: GateConfig, judgement: Judgement | None) -> Verdict | None:
    """Return the last verdict of a gate on all rows."""
    against = "" if gate.baseline == "none" else gate.baseline
    if judgement is None or gate.slice is not None or gate.span is not None or gate.rows == "golden":
        return None
    where = ", ".join(filter(None, (gate.narrowed, gate.of_queries)))
    same = (v for v in judgement.verdicts if (v.metric, v.against, v.of) == (gate.metric, against, gate.of))
    return next((verdict for verdict in same if verdict.where == where), None)
