"""The clean rows of a span, in files of a bounded number of rows.

So a training that replays few rows of a large span reads some of its files alone.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from infra.store.manifest import commit_by_content
from tasks.contracts.references import RowsRef, SpanRef
from tasks.contracts.workspace import ROWS
from tasks.data.rows import OF_FEED, ROWS_KIND, TEXTS, part_name
from tasks.worker.process.job import Job

ROWS_A_FILE = 2**18


class RowFiles:
    """Writes the clean rows of a span into files of at most `ROWS_A_FILE` rows, in a new folder."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._rows, self._files = folder, 0, 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, rows: pa.Table) -> None:
        """Add some rows, which are together in one file."""
        if self._writer is None or self._rows + len(rows) > ROWS_A_FILE:
            self.close()
            self._folder.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._folder / part_name(self._files), rows.schema)
            self._rows, self._files = 0, self._files + 1
        self._writer.write_table(rows)
        self._rows += len(rows)

    def close(self) -> None:
        """Close the last file, if there is any."""
        if self._writer is not None:
            self._writer.close()


def rows_folder(scratch: Path, span: SpanRef) -> Path:
    """Return the local folder of a span's clean rows."""
    return scratch / "rows" / span.name


def rows_files(scratch: Path, span: SpanRef) -> list[Path]:
    """Return the local files of a span's clean rows, in their order."""
    return sorted(rows_folder(scratch, span).iterdir())


def commit_rows(job: Job, scratch: Path, span: SpanRef, rows: int, ids_alone: bool) -> RowsRef:
    """Commit the clean rows of a span to the workspace, under a key that is the same in all attempts."""
    facts = {"span": span.name, "span_version": span.version, "rows": rows, **({TEXTS: OF_FEED} if ids_alone else {})}
    where = ROWS.of(job.spec, folder=span.name)
    prefix = commit_by_content(job.store, where, rows_folder(scratch, span), ROWS_KIND, facts)
    return RowsRef(span=span, prefix=prefix, rows=rows, share=job.config.evaluate.holdout_share)
