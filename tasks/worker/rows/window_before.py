"""Compare a window with the spans before it: missing rows, and rows that the previous span has too."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.validation import BeforeConfig
from infra.store.base import Store
from tasks.contracts.checkpoints import QUERY_AND_ITEM
from tasks.contracts.outcomes import Check
from tasks.contracts.references import RowsRef
from tasks.contracts.usual_rows import ENOUGH_SPANS, usual_rows
from tasks.data.rows import ITEM, QUERY, group_hashes
from tasks.worker.checks.verdicts import check_share, not_judged
from tasks.worker.rows.drift import MIN_ROWS
from tasks.worker.rows.holdout_read import HeldSpan

MISSING, AGAIN = "rows as many as before", "rows new"


def judge_before(
    store: Store, history: Sequence[RowsRef], window: Mapping[str, int], files: Sequence[Path], limits: BeforeConfig
) -> list[Check]:
    """Return the check of missing rows, and the check of rows that the previous span has too.

    Args:
        history: the spans before, oldest first.
        window: number of clean rows by span, oldest first.
        files: Parquet files of the clean rows.

    Raises:
        MissingFolder, CorruptFolder: the holdout folder of an earlier span is missing or damaged.
    """
    missing = _missing(history, window, limits)
    if len(history) < ENOUGH_SPANS:
        why = f"{len(history)} spans before; {ENOUGH_SPANS} are needed"
        return [missing, not_judged(AGAIN, limits.again, why)]
    return [missing, _again(store, history, files, limits)]


def _missing(history: Sequence[RowsRef], window: Mapping[str, int], limits: BeforeConfig) -> Check:
    """Return the check of the window's span that lacks most rows; earlier spans of the window are before it too."""
    before, found = [ref.rows for ref in history], []
    for span, rows in window.items():
        if (usual := usual_rows(before)) is not None:
            found.append((max(0.0, 1 - rows / usual), span, rows, usual))
        before.append(rows)
    if not found:
        return not_judged(MISSING, limits.missing, f"{len(before) - 1} spans before; {ENOUGH_SPANS} are needed")
    missing, span, rows, usual = max(found)
    sentence = f"{rows} clean rows in span {span}, and {usual:.0f} are usual: {missing:.2%} are missing"
    advice = "Is the export whole? Rows that come later: millrace ingest --merge."
    return check_share(MISSING, missing, limits.missing, "before.missing", sentence, advice)


def _again(store: Store, history: Sequence[RowsRef], files: Sequence[Path], limits: BeforeConfig) -> Check:
    one_before, last = (HeldSpan(store, ref, 0.0) for ref in history[-ENOUGH_SPANS:])
    texts = np.unique(np.concatenate([np.zeros(0, np.uint64), *_texts(files)]))
    of_last = last.trained_texts()
    if min(len(texts), len(of_last)) < MIN_ROWS:
        why = f"{len(texts)} texts in the window and {len(of_last)} in the span before; {MIN_ROWS} each are needed"
        return not_judged(AGAIN, limits.again, why)
    share, before = float(last.trained(texts).mean()), float(one_before.trained(of_last).mean())
    name = last.ref.span.name
    sentence = f"{share:.2%} of the window's queries with their items were in span {name} too, {before:.2%} were usual"
    advice = f"Was {name} exported once more?"
    return check_share(AGAIN, max(0.0, share - before), limits.again, "before.again", sentence, advice, "more")


def _texts(files: Sequence[Path]) -> Iterator[np.ndarray]:
    """Yield the hashes of the rows' query and item, uint64, piece by piece."""
    for path in files:
        for batch in pq.ParquetFile(path).iter_batches(columns=[QUERY, ITEM]):
            yield group_hashes(pa.Table.from_batches([batch]), QUERY_AND_ITEM)
