"""Compare the window's rows with earlier spans, column by column."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from configs.schema.config import Config
from configs.schema.validation import DriftConfig
from infra.store.base import Store
from infra.store.manifest import CorruptFolder, MissingFolder, open_folder
from tasks.contracts.outcomes import Check
from tasks.contracts.profiles import ColumnDrift
from tasks.contracts.references import RowsRef
from tasks.data.rows import ITEM, QUERY, ROWS_KIND
from tasks.quality.limits import Limit
from tasks.worker.rows.columns import Compared, compared, joined, swapped
from tasks.worker.rows.drift import MIN_ROWS, category_stability, population_stability

HISTORY_ROWS = 200_000  # the window is compared with about this many rows of the newest earlier spans
_JUDGED_ROWS = 50_000


def read_earlier(store: Store, refs: Sequence[RowsRef], config: Config) -> Compared:
    """Return the newest earlier rows, prepared for comparison, oldest span first.

    Raises:
        MissingFolder, CorruptFolder: the rows of a span are missing or damaged; names the span.
    """
    parts: list[Compared] = []
    for ref in reversed(refs):
        if sum(part.rows for part in parts) >= HISTORY_ROWS:
            break
        try:
            folder, manifest = open_folder(store, ref.prefix, ROWS_KIND)
        except (MissingFolder, CorruptFolder) as error:
            raise type(error)(f"rows of the earlier span {ref.span.name}: {error}") from error
        batches = []
        for entry in manifest.files:
            with pq.ParquetFile(folder / entry.name, pre_buffer=False) as file:
                batches += [
                    compared(pa.Table.from_batches([batch]), config) for batch in file.iter_batches(_JUDGED_ROWS)
                ]
        parts.append(joined(batches))
    return joined(parts[::-1])


def judge_drift(earlier: Compared, now: Compared, rules: DriftConfig) -> tuple[list[Check], tuple[ColumnDrift, ...]]:
    """Return a drift check for each compared series, and the drifts, the largest beside its limit first."""
    checks: list[Check] = []
    drifts: list[ColumnDrift] = []
    for column in now.series:
        drift = _drift(earlier, now, column, rules)
        if isinstance(drift, ColumnDrift):
            drifts.append(drift)
        else:
            sentence = f"Not judged: {drift}"
            severity = rules.severity_of(column)
            checks.append(
                Check(name=f"{column} drift", passed=True, severity=severity, observed=None, sentence=sentence)
            )
    judged = [
        Check(
            name=f"{drift.name} drift",
            passed=Limit(None, drift.limit).admits(drift.psi),
            severity=drift.severity,
            observed=round(drift.psi, 6),
            sentence=_sentence(drift, earlier, now, rules.limit_of(drift.name)),
        )
        for drift in drifts
    ]
    return [*judged, *checks], tuple(sorted(drifts, key=lambda drift: (-drift.psi / drift.limit, drift.name)))


def judge_places(earlier: Compared, now: Compared) -> list[Check]:
    """Return the check that the columns query and item are not swapped; empty if rows are too few."""
    if min(earlier.rows, now.rows) < MIN_ROWS:
        return []
    wrong = swapped(earlier.words, now.words, (QUERY, ITEM))
    found = (
        "The words of query are those that item had before, and the other way round: the columns have changed places."
        if wrong
        else "The words of query and item are in the columns that they were in before."
    )
    return [Check.critical("query and item in place", not wrong, found)]


def judge_columns(earlier: Compared, now: Compared) -> list[Check]:
    """Return the check that columns and types are as in the previous span; empty without one."""
    if not earlier.types:
        return []
    gone = [f"{name} is gone" for name in earlier.types if name not in now.types]
    new = [f"{name} is new" for name in now.types if name not in earlier.types]
    other = [
        f"{name} is {now.types[name]}, it was {kind}"
        for name, kind in earlier.types.items()
        if now.types.get(name, kind) != kind
    ]
    changes = [*gone, *new, *other]
    sentence = f"{', '.join(changes)}." if changes else f"All {len(now.types)} columns are as in the last span before."
    return [
        Check(
            name="columns as before",
            passed=not changes,
            severity="warning",
            observed=float(len(changes)),
            sentence=sentence,
        )
    ]


def _drift(earlier: Compared, now: Compared, column: str, rules: DriftConfig) -> ColumnDrift | str:
    """Return the drift of a column, or the reason why it can't be measured."""
    after = now.series[column]
    before = earlier.series.get(column)
    rows = 0 if before is None else len(before)
    if before is None or (fewest := min(rows, len(after))) < MIN_ROWS:
        fewest = min(rows, len(after))
        what = f"{rows} earlier rows and {len(after)} in the window"
        return f"{what}; {fewest} on one side is fewer than the {MIN_ROWS} needed."
    numbers = after.dtype.kind == "f"
    if numbers != (before.dtype.kind == "f"):
        return "it was numbers in one of the spans and names in another."
    drift = population_stability(before.to_numpy(), after.to_numpy()) if numbers else category_stability(before, after)
    # Add the drift expected by chance to the limit, or each small span would warn; with many rows it is near 0.
    return ColumnDrift(
        name=column,
        psi=drift.psi,
        limit=rules.limit_of(column) + drift.by_chance,
        severity=rules.severity_of(column),
        bins=drift.bins,
    )


def _sentence(drift: ColumnDrift, earlier: Compared, now: Compared, limit: float) -> str:
    by_chance = drift.limit - limit
    return (
        f"Population stability index {drift.psi:.3f} of {len(now.series[drift.name])} rows against "
        f"{len(earlier.series[drift.name])} earlier ones, over {len(drift.bins)} bins; at most {drift.limit:.3f} is "
        f"expected: {limit:g}, and {by_chance:.3f} that chance gives."
    )
