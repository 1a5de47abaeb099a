"""A source read once: its rows by span, first as spools of JSON lines, then as Parquet."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from tasks.contracts.progress import Progress
from tasks.contracts.spans import in_order
from tasks.data.canonical import Canonicaliser
from tasks.data.mapping import require_columns, require_seen
from tasks.data.reading.far_spans import Seen
from tasks.data.reading.item_texts import ItemTexts
from tasks.data.reading.nested import taken_apart
from tasks.data.reading.set_aside import SetAside
from tasks.data.row_ids import number_alike
from tasks.data.rows import ITEM_ID
from tasks.data.sources import SourceReader
from tasks.data.spool import BuiltSpan, Spools, build_span
from tasks.foundation.errors import DataError

ROWS_BETWEEN_REPORTS = 2000


class SpooledSource(NamedTuple):
    """The spools of a source, and by span what was seen of it."""

    spools: Spools
    seen: dict[str, Seen]


def spool_rows(
    reader: SourceReader,
    scratch: Path,
    canonicaliser: Canonicaliser,
    items: ItemTexts,
    aside: SetAside,
    report: Callable[[Progress], None],
) -> SpooledSource:
    """Write the rows of each span to a spool, and the texts of items that have ids of their own to `items`.

    Raises:
        DataError: a file or a row can't be read, and `aside` takes none; a column is missing; all rows were set aside.
    """
    what = f"reading {reader.files[0].name if len(reader.files) == 1 else f'{len(reader.files)} files'}"
    take_apart = taken_apart([canonicaliser.time_column, *canonicaliser.mapping.values()])
    has_item_ids = ITEM_ID in map(canonicaliser.layout.columns.get, canonicaliser.mapping)
    columns: set[str] = set()
    firsts: dict[str, str] = {}
    counts: Counter[str] = Counter()
    rows = 0
    with Spools(scratch) as spools:
        for record in reader:
            if record.row == 1:
                require_columns(record, reader.form, canonicaliser.time_column, canonicaliser.mapping)
            record = record._replace(values=take_apart(record.values))
            columns.update(record.values)
            try:
                row = canonicaliser.convert(record)
                line = row.to_line(record)
            except DataError as error:
                aside.take(record.values, error)
                continue
            spools.append(row.span, line)
            if row.span not in firsts:
                firsts[row.span] = record.place_of(canonicaliser.time_column)
            counts[row.span] += 1
            if has_item_ids and row.item_id and row.item is not None:
                items.add(row.item_id, row.item)
            rows += 1
            if rows % ROWS_BETWEEN_REPORTS == 0:
                report(Progress(what=what, done=reader.bytes_read, total=reader.bytes_total, note=f"{rows:,} rows"))
    report(Progress(what=what, done=reader.bytes_read, total=reader.bytes_total, note=f"{rows:,} rows"))
    if not rows:
        raise DataError(f"no row can be used; the first: {aside.first}")
    require_seen(reader.files[0], canonicaliser.mapping, columns)
    return SpooledSource(spools, {span: Seen(first, counts[span]) for span, first in firsts.items()})


def build_spans(spools: Spools, scratch: Path, canonicaliser: Canonicaliser) -> list[BuiltSpan]:
    """Return all spans as Parquet, oldest first; their types are those of the whole source."""
    columns = canonicaliser.columns()
    for name in spools.spans:
        number_alike(spools.path(name))
    return [build_span(name, spools.path(name), scratch / name, columns) for name in in_order(list(spools.spans))]
