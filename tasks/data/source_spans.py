"""Read a source once and split its rows by span, first into spools of JSON lines, then into Parquet.

The number of rows in memory is bounded, for an input of any length. Tables over all rows are on disk, in scratch
files that only the ingest that wrote them reads.
"""

import contextlib
import errno
import hashlib
import json
import sqlite3
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import IO, Any, BinaryIO, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.contracts.jobs import Progress
from tasks.contracts.spans import in_order
from tasks.data.canonical import Canonicaliser
from tasks.data.erased import Erasures
from tasks.data.files.readers import Unreadable
from tasks.data.files.shaping import Shaper
from tasks.data.files.sources import SourceReader
from tasks.data.files.spelling import as_bool, as_code, as_float
from tasks.data.files.survey import Survey
from tasks.data.files.times import Seen
from tasks.data.files.values import as_text
from tasks.data.mapping import require_columns, require_seen
from tasks.data.rows import CORE, ITEM_ID, LABEL, number_alike
from tasks.foundation.errors import ConfigError, DataError, DiskError
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record

SETTINGS = ("journal_mode = OFF", "synchronous = OFF", "cache_size = -4096")  # the last in KiB

_ITEMS = "CREATE TABLE items (id INTEGER PRIMARY KEY, text INTEGER, changes INTEGER) WITHOUT ROWID"
_ADD = """
INSERT INTO items VALUES (?, ?, 0)
ON CONFLICT (id) DO UPDATE SET changes = changes + (text != excluded.text), text = excluded.text
"""


@contextlib.contextmanager
def open_tables(file: Path) -> Iterator[sqlite3.Connection]:
    """Open a new database for the block, in one transaction that never commits. Raises DiskError: the disk is full."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as tables:
        for setting in SETTINGS:
            tables.execute(f"PRAGMA {setting}")
        tables.execute("BEGIN")
        try:
            yield tables
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode == sqlite3.SQLITE_FULL:
                folder = f"the temporary folder {tempfile.gettempdir()}"
                raise DiskError(
                    f"no space left in {folder}; free some space, or set TMPDIR to a folder on a larger disk"
                ) from error
            raise


class ItemTexts:
    """The items of a source and changes of their texts; only hashes are kept."""

    def __init__(self, tables: sqlite3.Connection) -> None:
        self._tables = tables
        tables.execute(_ITEMS)

    def add(self, item_id: str, text: str) -> None:
        self._tables.execute(_ADD, (_hash(item_id), _hash(text)))

    def __contains__(self, item_id: str) -> bool:
        return self._tables.execute("SELECT 1 FROM items WHERE id = ?", [_hash(item_id)]).fetchone() is not None

    def ids(self) -> int:
        """Return the number of items."""
        return int(self._tables.execute("SELECT count(*) FROM items").fetchone()[0])

    def with_several_texts(self) -> int:
        """Return the number of items whose text differs between rows."""
        return int(self._tables.execute("SELECT count(*) FROM items WHERE changes > 0").fetchone()[0])


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


OPEN_SPOOLS = 64
ROWS_IN_GROUP = 1000
CHARS_IN_GROUP = 2**18  # with long texts, a row group has fewer rows
ROWS_IN_PART = 100_000

_LABEL = list(CORE).index(LABEL)
Columns = Mapping[str, tuple[str, str]]  # source column -> (name in the span, one of float64, bool, string, code)

_TYPES: dict[str, tuple[pa.DataType, Callable[[Any], bool | float | str | None]]] = {
    "float64": (pa.float64(), as_float),
    "bool": (pa.bool_(), as_bool),
    "string": (pa.string(), as_text),
    "code": (pa.string(), as_code),
}


class BuiltSpan(Record):
    """One span's Parquet files in a local folder. `columns` is name -> type."""

    name: str
    folder: Path
    rows: int
    columns: dict[str, str]
    content_sha256: str
    labels: int  # rows with a label


class Spools:
    """Appends lines to one file for each span; only the most recently used files are open."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: OrderedDict[str, BinaryIO] = OrderedDict()
        self.spans: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        while self._open:
            self._open.popitem()[1].close()

    def append(self, span: str, line: bytes) -> None:
        if span in self._open:
            self._open.move_to_end(span)
        else:
            if len(self._open) == OPEN_SPOOLS:
                self._open.popitem(last=False)[1].close()
            self._open[span] = self.path(span).open("ab")
            self.spans.add(span)
        self._open[span].write(line)

    def path(self, span: str) -> Path:
        return self._folder / f"{span}.jsonl"


def row_of(line: bytes, others: Columns) -> list[Any]:
    """Return the values of a line: the core columns, then `others` converted to their types."""
    *core, values = json.loads(line)
    for source, (_, kind) in others.items():
        value = values.get(source)
        if isinstance(value, list):  # a text, and the value that the source's spelling gives it
            value = value[0 if kind in ("string", "code") else 1]
        core.append(None if value is None else _TYPES[kind][1](value))
    return core


def build_span(name: str, spool: Path, folder: Path, others: Columns) -> BuiltSpan:
    """Write the rows of a spool as `part-<n>.parquet` into `folder`, in their order.

    Args:
        others: the columns in addition to the core columns.
    """
    schema = pa.schema([*CORE.items(), *((column, _TYPES[kind][0]) for column, kind in others.values())])
    columns = {field.name: str(field.type) for field in schema}
    digest = hashlib.sha256(json.dumps(list(columns.items())).encode())
    folder.mkdir(parents=True, exist_ok=True)
    parts = rows = rows_in_part = labels = 0
    with contextlib.ExitStack() as part, spool.open("rb") as lines:
        writer: pq.ParquetWriter | None = None
        for group in _groups(lines):
            values: list[list[Any]] = [[] for _ in schema]
            for line in group:
                row = row_of(line, others)
                digest.update(json.dumps(row, separators=(",", ":")).encode() + b"\n")
                for column, value in zip(values, row, strict=True):
                    column.append(value)
            if writer is None or rows_in_part + len(group) > ROWS_IN_PART:
                part.close()
                writer = part.enter_context(pq.ParquetWriter(folder / f"part-{parts:05d}.parquet", schema))
                parts, rows_in_part = parts + 1, 0
            arrays = [pa.array(column, field.type) for column, field in zip(values, schema, strict=True)]
            writer.write_table(pa.table(arrays, schema=schema))
            rows, rows_in_part = rows + len(group), rows_in_part + len(group)
            labels += len(group) - arrays[_LABEL].null_count
    return BuiltSpan(
        name=name, folder=folder, rows=rows, columns=columns, content_sha256=digest.hexdigest(), labels=labels
    )


def _groups(lines: BinaryIO) -> Iterator[list[bytes]]:
    """Group lines into lists, one for each row group."""
    group: list[bytes] = []
    chars = 0
    for line in lines:
        group.append(line)
        chars += len(line)
        if len(group) == ROWS_IN_GROUP or chars >= CHARS_IN_GROUP:
            yield group
            group, chars = [], 0
    if group:
        yield group


ROWS_BETWEEN_REPORTS = 2000

_WHY = "why"  # the key of --set-aside with the reason, the last of a line; with a _ after it if a row has the key
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

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        """Close the file. Only an ingest that was made, or that blames the source, leaves it: a person looks there."""
        if self._out is not None and self.path is not None:
            keep = kind is None or issubclass(kind, DataError)
            with contextlib.nullcontext() if keep else contextlib.suppress(OSError):
                self._out.close()
            if not keep:
                self.path.unlink()

    def take(self, values: Mapping[str, Any], error: DataError) -> None:
        """Write the values of a record. Raises `error` itself if there is no rejects file."""
        if self.path is None:
            raise error
        why = _WHY
        while why in values:
            why += "_"
        self._write(self.path, {**values, why: str(error)}, error)

    def take_line(self, found: Unreadable, error: DataError) -> None:
        """Write the bytes of an unreadable record as os.fsdecode does. Raises `error` without a rejects file."""
        if self.path is None:
            raise error
        text = found.content.decode(errors="surrogateescape")
        values = {_BYTES: text, _LINE: found.line, _FILE: str(found.file), _WHY: str(error)}
        self._write(self.path, values, error)

    def _write(self, path: Path, values: Mapping[str, Any], error: DataError) -> None:
        try:
            if self._out is None:
                self._out = path.open("x", encoding="utf-8", buffering=1)  # a full disk is known here then
            self._out.write(json.dumps(values, default=str) + "\n")
        except OSError as full:
            if full.errno in (errno.ENOSPC, errno.EDQUOT):
                raise DiskError(f"no space left for --set-aside {path}; free some, or name another place") from full
            raise
        self.first = self.first or str(error)
        self.rows += 1


class SpooledSource(NamedTuple):
    """The spools of a source, and for each span its first record and number of rows."""

    spools: Spools
    seen: dict[str, Seen]
    erased: int  # rows with an erased value, which are left out


def spool_rows(
    reader: SourceReader,
    scratch: Path,
    canonicaliser: Canonicaliser,
    items: ItemTexts,
    aside: SetAside,
    report: Callable[[Progress], None],
    survey: Survey,
    shaper: Shaper,
    erased: Erasures,
) -> SpooledSource:
    """Write the rows of each span to a spool, the texts of items with mapped ids to `items`, and all to `survey`.

    Args:
        erased: rows with one of these values are left out.

    Raises:
        DataError: a file is unreadable; a row is invalid without a rejects file; a column is missing; all rows are
            invalid.
    """
    what = f"reading {reader.files[0].name if len(reader.files) == 1 else plural(len(reader.files), 'file')}"
    time = canonicaliser.time_column
    has_item_ids = ITEM_ID in map(canonicaliser.layout.columns.get, canonicaliser.mapping)
    columns: set[str] = set()
    firsts: dict[str, str] = {}
    counts: Counter[str] = Counter()
    rows = left_out = 0
    checked: PurePath | None = None
    with Spools(scratch) as spools:
        for record in reader:
            if record.file != checked:  # its number is no sign: the first rows may be set apart
                require_columns(record, reader.form, time, canonicaliser.mapping, shaper.completed)
                checked = record.file
            for values in shaper.rows(record):
                record = record._replace(values=values)
                columns.update(values)
                try:
                    row = canonicaliser.convert(record)
                    line = row.to_line(record)
                except DataError as error:
                    aside.take(values, error)
                    continue
                if erased and erased.any_of(row.values):
                    left_out += 1
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
                    report(
                        Progress(what=what, done=reader.bytes_read, total=reader.bytes_total, note=plural(rows, "row"))
                    )
    report(Progress(what=what, done=reader.bytes_read, total=reader.bytes_total, note=plural(rows, "row")))
    for name in [*spools.spans] if erased else ():
        gone = _without_erased(spools, name, canonicaliser.columns(), erased)
        counts[name], rows, left_out = counts[name] - gone, rows - gone, left_out + gone
    shaper.require_lists(reader.files[0])
    if (shaper.left_out or shaper.without) and not rows and not aside.rows:
        raise shaper.no_row(reader.files[0])
    if left_out and not rows and not aside.rows:
        raise DataError(f"{reader.files[0]}: all {left_out:,} rows hold values that `millrace erase` took out for ever")
    if not rows:
        raise DataError(f"no row can be used; the first: {aside.first}")
    require_seen(reader.files[0], canonicaliser.mapping, columns)
    seen = {span: Seen(first, counts[span]) for span, first in firsts.items() if counts[span]}
    return SpooledSource(spools, seen, left_out)


def _without_erased(spools: Spools, span: str, columns: Columns, erased: Erasures) -> int:
    """Take erased values out of a spool, named and typed as in the span, and return the number of their rows.

    While the source is read, the types of its columns are not known: its `+7` is 7 in a span with numbers.
    """
    names, path = [*CORE, *(name for name, _ in columns.values())], spools.path(span)
    kept, rows, gone = path.with_suffix(".kept"), 0, 0
    with path.open("rb") as lines, kept.open("wb") as target:
        for line in lines:
            is_erased = erased.any_of(dict(zip(names, row_of(line, columns), strict=True)))
            target.write(b"" if is_erased else line)
            rows, gone = rows + 1, gone + is_erased
    kept.replace(path)
    if gone == rows:
        spools.spans.discard(span)
    return gone


def build_spans(spools: Spools, scratch: Path, canonicaliser: Canonicaliser) -> list[BuiltSpan]:
    """Return all spans as Parquet, oldest first; their column types fit the whole source."""
    columns = canonicaliser.columns()
    for name in spools.spans:
        number_alike(spools.path(name))
    return [build_span(name, spools.path(name), scratch / name, columns) for name in in_order(list(spools.spans))]
