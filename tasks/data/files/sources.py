"""Read records from a user's files: JSONL, CSV or Parquet, plain or gzip, one file or a folder.

One record at a time is in memory, or one small batch of Parquet. This module does not interpret columns.
"""

import contextlib
import csv
import gzip
import io
import json
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from tasks.data.files.csv_form import DELIMITERS, find_delimiter, name_of, separator_line
from tasks.data.files.formats import SUFFIXES, Format, foreign_content, format_of, visible_files
from tasks.data.files.values import short
from tasks.foundation.errors import ConfigError, DataError

MAX_ROW_BYTES = 64 * 2**20  # a longer row means another file format, or a quote that is never closed
MAX_FIELD_CHARS = 16 * 2**20  # longest CSV cell; bounds the damage of an unclosed quote
PARQUET_BATCH_ROWS = 256
PARQUET_BUFFER_BYTES = 2**18
_GZIP_MAGIC = b"\x1f\x8b"


class SourceRow(NamedTuple):
    """One record and its number, from 1: the line of a JSONL file, the data row of other formats."""

    file: Path
    row: int
    values: dict[str, Any]

    def error(self, column: str, problem: str) -> DataError:
        """Return the error for one value of this record."""
        return DataError(f"{self.file}, row {self.row}, column {column!r}: {problem}")

    def place_of(self, column: str) -> str:
        """Return the position of one value of this record, and the value."""
        return f"{self.file}, row {self.row}, column {column!r}, {short(self.values.get(column))}"


class SourceReader:
    """Iterates over the records of a file or a folder; `bytes_read` of `bytes_total` is its progress.

    Raises, when created:
        ConfigError: the path does not exist or is not readable, its name gives no format, or the folder has no file of
            this format.
    Raises, while iterating:
        DataError: a file is empty or damaged, or has an unreadable record; names file and row.
    """

    def __init__(self, source: Path, form: Format | None = None, delimiter: str | None = None) -> None:
        """Find the files.

        Args:
            form: None: the names of the files give it.
            delimiter: separates the fields of CSV; None: detect it in each file.
        """
        _require_source(source)
        form = form or format_of(source)
        if delimiter is not None and form is not Format.csv:
            raise ConfigError(f"--delimiter: {form.value} has none; leave it out, or give --format csv")
        self.form = form
        self.delimiter = delimiter
        self.delimiters: dict[Path, str] = {}  # detected delimiter of each CSV file
        self.files = _find_files(source, form)
        self._sizes = [path.stat().st_size for path in self.files]
        self.bytes_total = sum(self._sizes)
        self.bytes_read = 0

    def __iter__(self) -> Iterator[SourceRow]:
        before = 0
        for path, size in zip(self.files, self._sizes, strict=True):
            cursor = _Cursor(path, self.form)
            with _opened(path) as raw, cursor.explaining():
                for values in self._records(_plain(raw, cursor), cursor):
                    self.bytes_read = max(self.bytes_read, before + min(raw.tell(), size))  # Parquet jumps
                    cursor.rows += 1
                    yield SourceRow(path, cursor.row, values)
            if not cursor.rows:
                raise DataError(f"{path}: the file has no rows; complete it, or remove it")
            before += size
        self.bytes_read = self.bytes_total

    def _records(self, stream: io.BufferedReader, cursor: "_Cursor") -> Iterator[dict[str, Any]]:
        if self.form is not Format.csv:
            return _READERS[self.form](stream, cursor)
        named = separator_line(stream.peek())
        if named:
            stream.readline()
        self.delimiters[cursor.path] = self.delimiter or named or _delimiter(stream, cursor)
        return _read_csv(stream, cursor, self.delimiters[cursor.path])


class _Cursor:
    """The position of a reader in a file, which errors name."""

    def __init__(self, path: Path, form: Format) -> None:
        self.path = path
        self.form = form
        self.row = 0  # the current row; 0: before the first
        self.rows = 0  # rows read so far
        self.held_bytes = 0  # bytes of the current row's lines

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.path}{f', row {self.row}' if self.row else ''}: {problem}")

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Convert the standard library's errors on damaged files to a DataError."""
        try:
            yield
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            # The file is read ahead of the rows, so the position is not exact.
            where = f", row {self.row} or later" if self.row else ""
            raise DataError(
                f"{self.path}{where}: the gzip data is cut off or damaged ({error}); fetch the file again"
            ) from error
        except UnicodeDecodeError as error:
            byte = error.object[error.start]
            convert = f"iconv -f WINDOWS-1252 -t UTF-8 {self.path.name} > utf8-{self.path.name}"
            text = f"; in Excel save it as CSV UTF-8, or convert it, as with: {convert}"
            way_out = "" if self.form is Format.parquet else text
            raise self.error(f"byte 0x{byte:02x} is not valid UTF-8{way_out}") from error


def _require_source(source: Path) -> None:
    if not source.exists():
        raise ConfigError(f"--source {source}: no such file or folder")
    if not source.is_file() and not source.is_dir():
        raise ConfigError(f"--source {source}: neither a file nor a folder")


def _find_files(source: Path, form: Format) -> list[Path]:
    """Return the file itself, or all files below a folder with a suffix of the format, sorted, except hidden ones."""
    if source.is_file():
        return [source]
    suffixes = (*SUFFIXES[form], *(f"{suffix}.gz" for suffix in SUFFIXES[form]))
    found = [path for path in visible_files(source) if path.name.lower().endswith(suffixes)]
    if not found:
        raise ConfigError(f"--source {source}: no {form.value} file in this folder; looked for *{', *'.join(suffixes)}")
    return found


def _opened(path: Path) -> io.BufferedReader:
    try:
        return path.open("rb")
    except OSError as error:
        raise ConfigError(f"--source {path}: cannot be opened: {error.strerror}") from error


def _plain(raw: io.BufferedReader, cursor: _Cursor) -> io.BufferedReader:
    """Return the uncompressed content; gzip is recognised by the first bytes, not by the file name."""
    start = raw.peek(2)[:2]
    if not start:
        raise cursor.error("the file is empty; complete it, or remove it")
    if start == _GZIP_MAGIC:
        return io.BufferedReader(cast(io.RawIOBase, gzip.GzipFile(fileobj=raw)), 2**16)
    if foreign := foreign_content(cursor.path, raw.peek(), cursor.form):
        raise cursor.error(foreign)
    return raw


def _lines(stream: io.BufferedReader, cursor: _Cursor) -> Iterator[str]:
    while line := stream.readline(MAX_ROW_BYTES + 1):
        cursor.held_bytes += len(line)
        if cursor.held_bytes > MAX_ROW_BYTES:
            raise cursor.error(f"a row of more than {MAX_ROW_BYTES // 2**20} MiB; check --format")
        yield line.decode()


def _without_byte_order_mark(lines: Iterator[str]) -> Iterator[str]:
    for first in lines:
        yield first.removeprefix("\ufeff")
        yield from lines


def _read_jsonl(stream: io.BufferedReader, cursor: _Cursor) -> Iterator[dict[str, Any]]:
    cursor.row = 1
    for line in _without_byte_order_mark(_lines(stream, cursor)):
        if line.strip():
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise cursor.error(f"not JSON: {error}; each line must be one JSON object") from error
            if not isinstance(values, dict):
                raise cursor.error(f"a JSON {type(values).__name__}, not an object; each line must be one JSON object")
            yield values
        cursor.row += 1
        cursor.held_bytes = 0


def _delimiter(stream: io.BufferedReader, cursor: _Cursor) -> str:
    """Detect the delimiter of a CSV file from its first lines, without consuming them."""
    start = stream.peek()
    found = find_delimiter(start.decode("utf-8-sig", errors="replace"), whole=len(start) < io.DEFAULT_BUFFER_SIZE)
    if found is None and cursor.path.name.lower().removesuffix(".gz").endswith(".tsv"):
        return DELIMITERS["tab"]
    if found is None:
        raise cursor.error(
            f"what separates the fields can't be told from its first lines; give --delimiter {', '.join(DELIMITERS)}"
        )
    return found


def _read_csv(stream: io.BufferedReader, cursor: _Cursor, delimiter: str) -> Iterator[dict[str, Any]]:
    csv.field_size_limit(MAX_FIELD_CHARS)  # the standard limit is shorter than some reviews
    reader = csv.reader(_without_byte_order_mark(_lines(stream, cursor)), delimiter=delimiter, strict=True)
    try:
        header = next(filter(None, reader), [])  # empty lines may precede it
        if doubled := _twice(header):
            problem = f"the header has column {doubled[0]!r} twice; give each column its own name"
            raise cursor.error(f"{problem}, and put a line of names first where there is none")
        others = [each for each in DELIMITERS.values() if each != delimiter and len(header) == 1 and each in header[0]]
        if others:
            raise cursor.error(
                f"no {name_of(delimiter)} separates the names in {header[0]!r:.80}, but {name_of(others[0])} may; "
                "leave --delimiter out"
            )
        cursor.row = 1
        cursor.held_bytes = 0
        for cells in reader:
            cursor.held_bytes = 0
            if not cells:
                continue
            if len(cells) < len(header):
                raise cursor.error(f"{len(cells)} of {len(header)} fields: column {header[len(cells)]!r} is missing")
            if len(cells) > len(header):
                raise cursor.error(
                    f"{len(cells)} fields, but the header ends after {len(header)}, with column {header[-1]!r}; "
                    f"quote fields that hold a {name_of(delimiter)}"
                )
            yield {name: cell or None for name, cell in zip(header, cells, strict=True)}
            cursor.row += 1
    except csv.Error as error:
        raise cursor.error(f"not CSV: {error}; look for a quote that is never closed") from error


def _read_parquet(stream: io.BufferedReader, cursor: _Cursor) -> Iterator[dict[str, Any]]:
    import pyarrow as pa  # not at the top: the command line needs only `Format`
    import pyarrow.parquet as pq

    with tempfile.TemporaryFile() as spooled:
        content: BinaryIO = stream
        if isinstance(stream.raw, gzip.GzipFile):  # Parquet is read from its end, and gzip can't seek
            shutil.copyfileobj(stream, spooled, 2**16)
            spooled.seek(0)
            content = spooled
        try:
            file = pq.ParquetFile(content, buffer_size=PARQUET_BUFFER_BYTES)
            names = file.schema_arrow.names
            if doubled := _twice(names):
                raise cursor.error(f"two columns are named {doubled[0]!r}; give each column its own name")
            cursor.row = 1
            for group in range(file.num_row_groups):  # one iterator over all groups would keep their memory
                for batch in file.iter_batches(PARQUET_BATCH_ROWS, row_groups=[group], use_threads=False):
                    columns = [_microseconds(column).to_pylist() for column in batch.columns]
                    for row in zip(*columns, strict=True):
                        yield dict(zip(names, row, strict=True))
                        cursor.row += 1
        except UnicodeDecodeError:
            raise
        except KeyError as error:
            raise cursor.error(f"a column has times of the zone {error}, which is unknown") from error
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error of the disk, not of the file
            raise cursor.error(f"not readable as Parquet: {error}") from error


def _twice(names: Sequence[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _microseconds(column: Any) -> Any:
    """Convert nanosecond timestamps: Arrow returns them as pandas objects, but microseconds as datetime."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        return column.cast(pa.timestamp("us", column.type.tz), safe=False)
    return column


_READERS: dict[Format, Callable[[io.BufferedReader, _Cursor], Iterator[dict[str, Any]]]] = {
    Format.jsonl: _read_jsonl,
    Format.parquet: _read_parquet,
}
