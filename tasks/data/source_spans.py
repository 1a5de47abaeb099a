"""Read a source once and split its rows by span, first into spools of JSON lines, then into Parquet."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Self

from tasks.contracts.runner import Progress
from tasks.contracts.spans import in_order
from tasks.data.canonical import Canonicaliser
from tasks.data.files.chosen_rows import Only, no_row_chosen
from tasks.data.files.cursor import SourceRow, Unreadable
from tasks.data.files.formats import Format
from tasks.data.files.nested import EVENT, exploded, require_lists
from tasks.data.files.sources import SourceReader
from tasks.data.files.survey import Survey
from tasks.data.files.times import Seen
from tasks.data.mapping import require_columns, require_seen, taken_apart
from tasks.data.row_ids import number_alike
from tasks.data.rows import ITEM_ID, ROW_ID
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
            self._out = path.open("x")
        self._out.write(json.dumps(values, default=str) + "\n")
        self.first = self.first or str(error)
        self.rows += 1


class SpooledSource(NamedTuple):
    """The spools of a source, and for each span its first record and number of rows."""

    spools: Spools
    seen: dict[str, Seen]
    left_out: int  # rows that --only does not choose
    without: int  # records without a value in the columns of --explode


def spool_rows(
    reader: SourceReader,
    scratch: Path,
    canonicaliser: Canonicaliser,
    items: ItemTexts,
    aside: SetAside,
    report: Callable[[Progress], None],
    survey: Survey,
    only: Sequence[Only] = (),
    explode: Sequence[str] = (),
) -> SpooledSource:
    """Write the rows of each span to a spool, the texts of items with mapped ids to `items`, and all to `survey`.

    Raises:
        DataError: a file is unreadable; a row is invalid without a rejects file; a column is missing; all rows are
            invalid.
    """
    what = f"reading {reader.files[0].name if len(reader.files) == 1 else f'{len(reader.files)} files'}"
    time = canonicaliser.time_column
    chosen_by = [each.column for each in only]
    take_apart = taken_apart([*([time] if time else []), *canonicaliser.mapping.values(), *chosen_by])
    to_lists = taken_apart(explode)
    id_column = next(
        (c for name, c in canonicaliser.mapping.items() if canonicaliser.layout.columns[name] == ROW_ID), None
    )
    has_item_ids = ITEM_ID in map(canonicaliser.layout.columns.get, canonicaliser.mapping)
    columns: set[str] = set()
    firsts: dict[str, str] = {}
    counts: Counter[str] = Counter()
    rows = left_out = without = 0

    def each_row() -> Iterator[SourceRow]:
        nonlocal without
        for record in reader:
            if record.row == 1:
                require_columns(record, reader.form, time, canonicaliser.mapping)
            if not explode:
                yield record
                continue
            values = to_lists(record.values)
            columns.update(values)
            require_lists(values, explode, record.file, complete=reader.form in (Format.csv, Format.parquet))
            several = [*exploded(values, explode, id_column)]
            without += not several
            yield from (record._replace(values=each) for each in several)

    with Spools(scratch) as spools:
        for record in each_row():
            record = record._replace(values=take_apart(record.values))
            columns.update(record.values)
            if not all(each.holds(record.values) for each in only):
                left_out += 1
                continue
            try:
                row = canonicaliser.convert(record)
                line = row.to_line(record)
            except DataError as error:
                aside.take(record.values, error)
                continue
            spools.append(row.span, line)
            survey.add(record.values)
            if row.span not in firsts:
                firsts[row.span] = record.place_of(time) if time else f"{record.file}, row {record.row}"
            counts[row.span] += 1
            if has_item_ids and row.item_id and row.item is not None:
                items.add(row.item_id, row.item)
            rows += 1
            if rows % ROWS_BETWEEN_REPORTS == 0:
                report(Progress(what=what, done=reader.bytes_read, total=reader.bytes_total, note=f"{rows:,} rows"))
    report(Progress(what=what, done=reader.bytes_read, total=reader.bytes_total, note=f"{rows:,} rows"))
    if left_out and not rows and not aside.rows:
        raise no_row_chosen(reader.files[0], only, columns)
    require_lists(dict.fromkeys(columns - {EVENT}), explode, reader.files[0], complete=True)
    if explode and not rows and not aside.rows:
        raise DataError(f"{reader.files[0]}: no row has a value in {' or '.join(explode)}, which --explode names")
    if not rows:
        raise DataError(f"no row can be used; the first: {aside.first}")
    require_seen(reader.files[0], canonicaliser.mapping, columns)
    seen = {span: Seen(first, counts[span]) for span, first in firsts.items()}
    return SpooledSource(spools, seen, left_out, without)


def build_spans(spools: Spools, scratch: Path, canonicaliser: Canonicaliser) -> list[BuiltSpan]:
    """Return all spans as Parquet, oldest first; their column types fit the whole source."""
    columns = canonicaliser.columns()
    for name in spools.spans:
        number_alike(spools.path(name))
    return [build_span(name, spools.path(name), scratch / name, columns) for name in in_order(list(spools.spans))]
