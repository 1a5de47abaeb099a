"""Rows that name their items by id alone: their texts from the item feed, and the rows of unknown items."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.outcomes import Check
from tasks.contracts.references import FeedRef, SpanRef
from tasks.data.rows import ITEM_ID
from tasks.worker.catalogue.item_texts import with_texts
from tasks.worker.rows.counts import WindowCounts
from tasks.worker.rows.row_checks import ParquetPart

pc: Any = pyarrow.compute  # its functions are created at import, unknown to type checkers

UNKNOWN_ITEM = "unknown item"
NO_TEXT = "deleted item without a text"
_SHOWN = 3  # ids in a sentence


class FilledSpan(NamedTuple):
    """A span's rows with texts filled in; `unknown` has the rows of items whose text the feed lacks."""

    parts: list[ParquetPart]
    unknown: Path | None
    deleted: frozenset[str] = frozenset()  # ids in `unknown` that the feed knows as deleted alone
    rows_deleted: int = 0  # rows with a text whose item is deleted now


def fill_span(
    store: Store, span: SpanRef, parts: Sequence[ParquetPart], feeds: Sequence[FeedRef], config: Config, folder: Path
) -> FilledSpan:
    """Return a span of ids alone with texts from the feed, in files of `folder`. Raises as `with_texts`."""
    folder.mkdir(parents=True)
    found = with_texts(store, [part.path for part in parts], feeds, config, folder)
    part = ParquetPart(span, found.known, pq.read_schema(found.known))
    return FilledSpan([part], found.unknown, found.deleted, found.rows_deleted)


def set_unknown_apart(counts: WindowCounts, span: SpanRef, filled: FilledSpan) -> int:
    """Count the rows of items without a text, by the reason; return their number."""
    if filled.unknown is None:
        return 0
    rows = pq.read_table(filled.unknown)
    deleted = pc.is_in(rows[ITEM_ID], value_set=pa.array(filled.deleted, pa.string()))
    for some, reason in ((rows.filter(pc.invert(deleted)), UNKNOWN_ITEM), (rows.filter(deleted), NO_TEXT)):
        if len(some):
            counts.set_apart(span, some, reason)
    return len(rows)


def unknown_items(counts: WindowCounts, feeds: Sequence[FeedRef], late: int, deleted: int) -> Check:
    """Return the check that the feed knows the items of all rows.

    Args:
        late: rows of earlier spans whose items the feed knows since.
        deleted: rows whose items the feed knows, as deleted now.
    """
    unknown, textless, total = counts.reasons[UNKNOWN_ITEM], counts.reasons[NO_TEXT], counts.rows_in
    apart = unknown + textless
    known = f"The item feed ({_newest(feeds)}) knows the items of"
    gone = f" ({deleted} of them about deleted items)" if deleted else ""
    sentence = f"{known} all rows{gone}."
    if apart:
        sentence = f"{known} {total - apart} of {total} rows ({(total - apart) / total:.2%}){gone}."
        if unknown:
            sentence += f" It lacks the items of {unknown} rows, such as {_ids(counts, UNKNOWN_ITEM)}."
        if textless:
            sentence += f" It has those of {textless} as deleted alone, without a text, as {_ids(counts, NO_TEXT)}."
        sentence += " These rows are set apart, and later runs look for their items."
    if late:
        sentence += f" Rows of earlier spans that came in, since the feed knows their items now: {late}."
    return Check(
        name="items in the feed", passed=not apart, severity="warning", observed=float(apart), sentence=sentence
    )


def way_out(counts: WindowCounts, feeds: Sequence[FeedRef]) -> str:
    """Return the end of a sentence about too many bad rows, if some are about unknown items."""
    unknown, deleted = counts.reasons[UNKNOWN_ITEM], counts.reasons[NO_TEXT]
    sentence = ""
    if unknown:
        sentence = (
            f" The item feed ({_newest(feeds)}) does not know the items of {unknown} of them, such as "
            f"{_ids(counts, UNKNOWN_ITEM)}: ingest their records with millrace ingest --items, and run again. Are the "
            "ids of log and feed written alike?"
        )
    if deleted:
        sentence += (
            f" {deleted} of them are about items that the feed has as deleted alone, without a text, such as "
            f"{_ids(counts, NO_TEXT)}: ingest a record of each with its text, of a time before its deletion."
        )
    return sentence


def _ids(counts: WindowCounts, reason: str) -> str:
    """Return a few ids of the items that rows were set apart for."""
    values = (sample.values[ITEM_ID] for sample in counts.samples if sample.reason == reason)
    return ", ".join([repr(each) for each in dict.fromkeys(values)][:_SHOWN])


def _newest(feeds: Sequence[FeedRef]) -> str:
    return f"newest span: {feeds[-1].name} v{feeds[-1].version}" if feeds else "empty"
