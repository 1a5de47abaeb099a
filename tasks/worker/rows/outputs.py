"""Write validate's outputs: clean rows by span, profiles, bad rows, and the report of a rejected window."""

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.manifest import commit, commit_by_content
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.profiles import BAD_ROWS_KIND, SpanProfile
from tasks.contracts.references import RowsRef, SpanRef
from tasks.contracts.workspace import BAD_ROWS, DATA_REPORT, PROFILE, ROWS
from tasks.data.rows import OF_FEED, ROWS_KIND, TEXTS
from tasks.foundation.errors import DataError
from tasks.worker.process.job import Job


def rows_file(scratch: Path, span: SpanRef) -> Path:
    """Return the local file of a span's clean rows, the only one in its folder."""
    return scratch / "rows" / span.name / "part-00000.parquet"


def commit_rows(job: Job, scratch: Path, span: SpanRef, rows: int, ids_alone: bool) -> RowsRef:
    """Commit the clean rows of a span to the workspace, under a key that is the same in all attempts."""
    facts = {"span": span.name, "span_version": span.version, "rows": rows, **({TEXTS: OF_FEED} if ids_alone else {})}
    where = ROWS.of(job.spec, folder=span.name)
    prefix = commit_by_content(job.store, where, rows_file(scratch, span).parent, ROWS_KIND, facts)
    return RowsRef(span=span, prefix=prefix, rows=rows, share=job.config.evaluate.holdout_share)


def write_profiles(job: Job, profiles: Sequence[SpanProfile]) -> dict[str, str]:
    """Write the profiles; return their keys by span."""
    keys = {}
    for profile in profiles:
        keys[profile.span] = PROFILE.of(job.spec, span=profile.span)
        job.store.write(keys[profile.span], profile.to_json())
    return keys


def write_quarantine(job: Job, scratch: Path, bad: Sequence[pa.Table]) -> str | None:
    """Write the bad rows of all spans; return the key of the file, None without bad rows."""
    if not bad:
        return None
    try:
        table = pa.concat_tables(bad, promote_options="permissive")
    except (pa.ArrowTypeError, pa.ArrowInvalid):  # an unused column is text in one span, numbers in another
        as_text = (t.cast(pa.schema([(name, pa.string()) for name in t.column_names])) for t in bad)
        table = pa.concat_tables(as_text, promote_options="default")
    folder = scratch / "quarantine"
    folder.mkdir()
    pq.write_table(table, folder / "quarantine.parquet")
    prefix = BAD_ROWS.of(job.spec)
    commit(job.store, prefix, folder, BAD_ROWS_KIND, {"rows": len(table)})
    return f"{prefix}/quarantine.parquet"


def stop_if_critical(job: Job, outcome: ValidateOutcome, window: Sequence[SpanRef]) -> None:
    """Write the report of the window and raise, if a critical check failed.

    Raises:
        DataError: a critical check failed; the message names each with its numbers, and the files.
    """
    failed = [check for check in outcome.checks if check.severity == "critical" and not check.passed]
    if not failed:
        return
    key = DATA_REPORT.of(job.spec)
    job.store.write(key, outcome.to_json())
    spans = window[0].name if len(window) == 1 else f"{window[0].name} to {window[-1].name}"
    reasons = ", ".join(f"{reason} ({rows})" for reason, rows in outcome.reasons.items())
    lines = [
        f"span {spans} is not fit to train on:",
        *(f"- {check.name}: {check.sentence}" for check in failed),
        f"Bad rows by reason: {reasons or 'none'}.",
        *([f"The bad rows are in {job.store.uri}/{outcome.quarantine}"] if outcome.quarantine else []),
        f"All checks are in {job.store.uri}/{key}",
        "Correct the source and ingest the span again, or change the limits under validate: in the configuration.",
    ]
    raise DataError("\n".join(lines))
