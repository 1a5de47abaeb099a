"""Read a source once and split its rows by span, first into spools of JSON lines, then into Parquet."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from tasks.contracts.runner import Progress
from tasks.contracts.spans import in_order
from tasks.data.canonical import Canonicaliser
from tasks.data.files.cursor import Unreadable
from tasks.data.files.shaping import Shaper
from tasks.data.files.sources import SourceReader
from tasks.data.files.survey import Survey
from tasks.data.files.times import Seen
from tasks.data.mapping import require_columns, require_seen
from tasks.data.row_ids import number_alike
from tasks.data.rows import ITEM_ID
from tasks.data.spool import BuiltSpan, Spools, build_span
from tasks.data.tables import ItemTexts
from tasks.foundation.errors import ConfigError, DataError

ROWS_BETWEEN_REPORTS = 2000

_WHY = "why"  # the key of --set-aside with the reason
_BYTES, _LINE, _FILE = "bytes", "line", "file"  # the keys of --set-aside for a row that can't be read


class SetAside:
    """The rejects file: records as JSON lines with the reason; created with the first record."""

    def __init__(self, path: Path | None) -> None:
        """Raises ConfigError: the file exists, or its folder does not."""
        if path is not None and path.exists():
            raise ConfigError(f"--set-aside {path}: there is such a file; name a new one, or move it away")
        if path is not None and not path.absolute().parent.is_dir():
            raise ConfigError(f"--set-aside {path}: there is no folder {path.absolute().parent}; make it first")
        self.path = path
        self._out: IO[str] | None = None
        self.rows = 0
        self.first = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._out is not None:
            self._out.close()

    def take(self, values: Mapping[str, Any], error: DataError) -> None:
        """Write the values of a record. Raises `error` itself if there is no rejects file."""
        if self.path is None:
            raise error
        self._write(self.path, {**values, _WHY: str(error)}, error)

    def take_line(self, found: Unreadable, error: DataError) -> None:
        """Write the bytes of an unreadable record as os.fsdecode does. Raises `error` without a rejects file."""
        if self.path is None:
            raise error
        text = found.content.decode(errors="surrogateescape")
        values = {_BYTES: text, _LINE: found.line, _FILE: str(found.file), _WHY: str(error)}
        self._write(self.path, values, error)

    def _write(self, path: Path, values: Mapping[str, Any], error: DataError) -> None:
        if self._out is None:
            self._out = path.open("x", encoding="utf-8")
        self._out.write(json.dumps(values, default=str) + "\n")
        self.first = self.first or str(error)
        self.rows += 1


class SpooledSource(NamedTuple):
    """The spools of a source, and for each span its first record and number of rows."""

    spools: Spools
    seen: dict[str, Seen]


def spool_rows(
    reader: SourceReader,
    scratch: Path,
    canonicaliser: Canonicaliser,
    items: ItemTexts,
    aside: SetAside,
    report: Callable[[Progress], None],
    survey: Survey,
    shaper: Shaper,
) -> SpooledSource:
    """Write the rows of each span to a spool, the texts of items with mapped ids to `items`, and all to `survey`.

    Raises:
        DataError: a file is unreadable; a row is invalid without a rejects file; a column is missing; all rows are
            invalid.
    """
    what = f"reading {reader.files[0].name if len(reader.files) == 1 else f'{len(reader.files)} files'}"
    time = canonicaliser.time_column
    has_item_ids = ITEM_ID in map(canonicaliser.layout.columns.get, canonicaliser.mapping)
    columns: set[str] = set()
    firsts: dict[str, str] = {}
    counts: Counter[str] = Counter()
    rows = 0
    with Spools(scratch) as spools:
        for record in reader:
            if record.row == 1:
                require_columns(record, reader.form, time, canonicaliser.mapping, shaper.completed)
            for values in shaper.rows(record):
                record = record._replace(values=values)
                columns.update(values)
                try:
                    row = canonicaliser.convert(record)
                    line = row.to_line(record)
                except DataError as error:
                    aside.take(values, error)
                    continue
                spools.append(row.span, line)
                survey.add(values)
                if row.span not in firsts:
                    firsts[row.span] = record.place_of(time) if time else f"{record.file}, row {record.row}"
                counts[row.span] += 1
                if has_item_ids and row.item_id and row.item is not None:
                    items.add(row.item_id, row.item)
                rows += 1
                if rows % ROWS_BETWEEN_REPORTS == 0:
                    report(Progress(what=what, done=reader.bytes_read, total=reader.bytes_total, note=f"{rows:,} rows"))
    report(Progress(what=what, done=reader.bytes_read, total=reader.bytes_total, note=f"{rows:,} rows"))
    shaper.require_lists(reader.files[0])
    if (shaper.left_out or shaper.without) and not rows and not aside.rows:
        raise shaper.no_row(reader.files[0])
    if not rows:
        raise DataError(f"no row can be used; the first: {aside.first}")
    require_seen(reader.files[0], canonicaliser.mapping, columns)
    return SpooledSource(spools, {span: Seen(first, counts[span]) for span, first in firsts.items()})


def build_spans(spools: Spools, scratch: Path, canonicaliser: Canonicaliser) -> list[BuiltSpan]:
    """Return all spans as Parquet, oldest first; their column types fit the whole source."""
    columns = canonicaliser.columns()
    for name in spools.spans:
        number_alike(spools.path(name))
    return [build_span(name, spools.path(name), scratch / name, columns) for name in in_order(list(spools.spans))]
