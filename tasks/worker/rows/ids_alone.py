"""Rows that name their items by id alone: their texts from the item feed, and the rows of unknown items."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow.parquet as pq

from configs.schema.config import Config
from infra.store.base import Store
from tasks.contracts.outcomes import Check
from tasks.contracts.references import FeedRef, SpanRef
from tasks.data.rows import ITEM_ID
from tasks.worker.catalogue.item_texts import with_texts
from tasks.worker.rows.counts import WindowCounts
from tasks.worker.rows.row_checks import ParquetPart

UNKNOWN_ITEM = "unknown item"
_SHOWN = 3  # ids in a sentence


class FilledSpan(NamedTuple):
    """The files of a span whose rows have texts now; `unknown` has the rows whose items the feed does not know."""

    parts: list[ParquetPart]
    unknown: Path | None


def fill_span(
    store: Store, span: SpanRef, parts: Sequence[ParquetPart], feeds: Sequence[FeedRef], config: Config, folder: Path
) -> FilledSpan:
    """Return a span of ids alone with texts from the feed, in files of `folder`. Raises as `with_texts`."""
    folder.mkdir(parents=True)
    found = with_texts(store, [part.path for part in parts], feeds, config, folder)
    return FilledSpan([ParquetPart(span, found.known, pq.read_schema(found.known))], found.unknown)


def set_unknown_apart(counts: WindowCounts, span: SpanRef, unknown: Path | None) -> int:
    """Count the rows of unknown items; return their number."""
    if unknown is None:
        return 0
    rows = pq.read_table(unknown)
    counts.set_apart(span, rows, UNKNOWN_ITEM)
    return len(rows)


def unknown_items(counts: WindowCounts, feeds: Sequence[FeedRef], late: int) -> Check:
    """Return the check that the feed knows the items of all rows.

    Args:
        late: rows of earlier spans whose items the feed knows since.
    """
    unknown, total = counts.reasons[UNKNOWN_ITEM], counts.rows_in
    sentence = f"The item feed ({_newest(feeds)}) knows the items of all rows."
    if unknown:
        sentence = (
            f"{unknown} of {total} rows ({unknown / total:.2%}) are about items that the item feed ({_newest(feeds)}) "
            f"does not know, such as {', '.join(_ids(counts))}; they are set apart, and later runs look for them."
        )
    if late:
        sentence += f" Rows of earlier spans that came in, since the feed knows their items now: {late}."
    return Check(
        name="items in the feed", passed=not unknown, severity="warning", observed=float(unknown), sentence=sentence
    )


def way_out(counts: WindowCounts, feeds: Sequence[FeedRef]) -> str:
    """Return the end of a sentence about too many bad rows, if some are about unknown items."""
    unknown = counts.reasons[UNKNOWN_ITEM]
    if not unknown:
        return ""
    return (
        f" The item feed ({_newest(feeds)}) does not know the items of {unknown} of them, such as "
        f"{', '.join(_ids(counts))}: ingest their records with millrace ingest --items, and run again. Are the ids of "
        "log and feed written alike?"
    )


def _ids(counts: WindowCounts) -> list[str]:
    """Return a few ids of unknown items."""
    values = (sample.values[ITEM_ID] for sample in counts.samples if sample.reason == UNKNOWN_ITEM)
    return [repr(each) for each in dict.fromkeys(values)][:_SHOWN]


def _newest(feeds: Sequence[FeedRef]) -> str:
    return f"newest span: {feeds[-1].name} v{feeds[-1].version}" if feeds else "empty"
