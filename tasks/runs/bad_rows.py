"""A bounded sample of the rows that validate set apart, or that wait for their items, read when somebody asks.

Nothing here is stored: once the folder is deleted, nobody sees its rows again.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from infra.store.base import Store
from infra.store.manifest import Manifest, open_file, open_manifest
from tasks.contracts.profiles import BAD_ROWS_KIND, INGESTED_IN, REASON, SEPARATOR, SPAN, WAITING_KIND, SampleRow

MOST_ROWS = 200  # in a sample
EACH_REASON = 25  # rows for each reason come before all others
LOOKED_AT = 200_000  # rows from which the sample is taken
MOST_BYTES = 2**30  # larger folders are not fetched
_CHARS = 200  # shown from one value


class BadRows(NamedTuple):
    """`looked_at` of the `rows` of a folder were read for the sample; 0: it is larger than MOST_BYTES."""

    rows: int
    looked_at: int
    sample: tuple[SampleRow, ...]


def read_bad_rows(store: Store, file: str) -> BadRows:
    """Return a sample of the rows in quarantine: a few for each reason, then the first ones.

    Args:
        file: key of the Parquet file, as `ValidateOutcome.quarantine` has it.

    Raises:
        MissingFolder, CorruptFolder: it was deleted, or is damaged; names the file.
    """
    return _read(store, file.rpartition("/")[0], BAD_ROWS_KIND)


def read_waiting(store: Store, folder: str) -> BadRows:
    """Return a sample of the rows that wait for their items, without reasons; raises as `read_bad_rows`."""
    return _read(store, folder, WAITING_KIND)


def _read(store: Store, folder: str, kind: str) -> BadRows:
    manifest = open_manifest(store, folder, kind)
    rows = int(manifest.facts["rows"])
    if sum(entry.bytes for entry in manifest.files) > MOST_BYTES:
        return BadRows(rows, 0, ())
    first: list[SampleRow] = []
    each: list[SampleRow] = []
    met: Counter[str] = Counter()
    looked_at = 0
    for row in _rows(store, folder, manifest):
        looked_at += 1
        reason, span = str(row.pop(REASON, "")), str(row.pop(SPAN, "") or row.pop(INGESTED_IN, ""))
        reasons = reason.split(SEPARATOR)
        wanted = any(met[one] < EACH_REASON for one in reasons)
        if wanted or len(first) < MOST_ROWS:
            met.update(reasons)
            values = {name: _cut(value) for name, value in row.items()}
            (each if wanted else first).append(SampleRow(reason=reason, span=span, values=values))
        if looked_at == LOOKED_AT:
            break
    return BadRows(rows, looked_at, tuple([*each, *first][:MOST_ROWS]))


def _rows(store: Store, folder: str, manifest: Manifest) -> Iterator[dict[str, Any]]:
    for entry in manifest.files:
        with pq.ParquetFile(open_file(store, folder, manifest, entry.name), pre_buffer=False) as file:
            for batch in file.iter_batches(1024):
                yield from batch.to_pylist()


def _cut(value: object) -> str:
    text = "null" if value is None else str(value) or "(empty)"
    return text if len(text) <= _CHARS else f"{text[:_CHARS]}… ({len(text):,} characters)"
