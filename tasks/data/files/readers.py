"""Readers of a source's records, with their position in a file: JSON Lines, Parquet and feeds in XML.

JSON Lines has one object a line; objects that a log service has put on one line are read too. Parquet is read in
small batches. A feed in XML has the elements `item` of RSS or `entry` of Atom, as Google Merchant writes them; it
streams through expat. A document type, which alone can define entities, is refused: entities may expand to
gigabytes, or name other files.
"""

import contextlib
import gzip
import io
import json
import lzma
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePath
from typing import Any, BinaryIO, NamedTuple
from xml.parsers import expat

from tasks.data.files.formats import Format
from tasks.data.files.values import Float16, Float32, short
from tasks.foundation.errors import DataError

MAX_ROW_BYTES = 64 * 2**20  # a longer row means another file format, or a quote that is never closed
FEW_UNREADABLE = 10  # rows that may be set aside in any source
MOST_UNREADABLE = 0.05  # share of rows; more means another format or dialect

_OF_DAMAGE = (OSError, gzip.BadGzipFile)  # exactly these, without a number: bzip2 and Zstandard raise a bare OSError


class SourceRow(NamedTuple):
    """One record and its number, from 1: the line of a JSONL file, the data row of other formats."""

    file: PurePath
    row: int
    values: dict[str, Any]

    def error(self, column: str, problem: str) -> DataError:
        """Return the error for one value of this record."""
        return DataError(f"{self.file}, row {self.row}, column {column!r}: {problem}")

    def place_of(self, column: str) -> str:
        """Return the position of one value of this record, and the value."""
        return f"{self.file}, row {self.row}, column {column!r}, {short(self.values.get(column))}"


class Unreadable(NamedTuple):
    """Bytes of a file that are no record: one line, or the lines of one record with quotes."""

    file: PurePath
    line: int  # number of the first line, from 1
    content: bytes


TakeUnreadable = Callable[[Unreadable, DataError], None]


class Unread:
    """The rows of a source that could not be read, and the limit of their share."""

    def __init__(self, take: TakeUnreadable | None) -> None:
        self._take = take
        self.rows = 0

    def add(self, found: Unreadable, error: DataError, read: int) -> None:
        """Hand a row over. Raises `error` itself if nobody takes it; DataError: there are too many.

        Args:
            read: rows that were read so far.
        """
        if self._take is None:
            raise error
        self._take(found, error)
        self.rows += 1
        if self.rows > 100 * FEW_UNREADABLE and self.rows > read:
            self.judge(read)

    def judge(self, read: int) -> None:
        """Raise DataError if too many rows are unreadable."""
        if self.rows > max(FEW_UNREADABLE, MOST_UNREADABLE * (self.rows + read)):
            raise DataError(
                f"{self.rows:,} of {self.rows + read:,} rows can't be read, and were set aside with their reasons; at "
                f"most {MOST_UNREADABLE:.0%} may be. Look at the first: mostly the format is another one (--format, "
                "--delimiter, --quote)"
            )


class Cursor:
    """The position of a reader in a file."""

    def __init__(self, path: PurePath, form: Format, unread: Unread, before: int = 0) -> None:
        self.path = path
        self.form = form
        self.row = 0  # the current row; 0: before the first
        self.rows = 0  # rows read so far
        self.line = 0  # lines read so far
        self._unread = unread
        self._before = before  # rows of earlier files

    def error(self, problem: str) -> DataError:
        return DataError(f"{self.path}{f', row {self.row}' if self.row else ''}: {problem}")

    def set_aside(self, line: int, content: bytes, error: DataError) -> None:
        """Leave out a row that can't be read. Raises `error` itself if nobody takes such rows."""
        self._unread.add(Unreadable(self.path, line, content), error, self._before + self.rows)

    def not_text(self, error: UnicodeDecodeError) -> DataError:
        """Return the error for bytes that are not UTF-8."""
        byte = error.object[error.start]
        convert = f"iconv -f WINDOWS-1252 -t UTF-8 {self.path.name} > utf8-{self.path.name}"
        text = f"; in Excel save it as CSV UTF-8, or convert it, as with: {convert}"
        return self.error(f"byte 0x{byte:02x} is not valid UTF-8{'' if self.form is Format.parquet else text}")

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Convert the libraries' errors on damaged files to a DataError."""
        try:
            yield
        except (EOFError, zlib.error, lzma.LZMAError, OSError) as error:
            # An error of a disk has a number, and one of a connection a class of its own.
            if isinstance(error, OSError) and (error.errno is not None or type(error) not in _OF_DAMAGE):
                raise
            # The file is read ahead of the rows, so the position is not exact.
            where = f", row {self.row} or later" if self.row else ""
            raise DataError(
                f"{self.path}{where}: the compressed data is cut off or damaged ({error}); fetch the file again"
            ) from error
        except UnicodeDecodeError as error:
            raise self.not_text(error) from error


_JSON = json.JSONDecoder()
_MARK = b"\xef\xbb\xbf"


def read_jsonl(stream: io.BufferedReader, cursor: Cursor) -> Iterator[dict[str, Any]]:
    """Yield the objects of all lines; a line that is not JSON is set aside, or an error."""
    cursor.row = 1
    while line := stream.readline(MAX_ROW_BYTES + 1):
        if len(line) > MAX_ROW_BYTES:
            raise cursor.error(f"a row of more than {MAX_ROW_BYTES // 2**20} MiB; check --format")
        content = line.removeprefix(_MARK) if cursor.row == 1 else line
        try:
            yield from _objects(content, cursor) if content.strip() else ()
        except DataError as error:
            cursor.set_aside(cursor.row, line, error)
        cursor.row += 1


def _objects(line: bytes, cursor: Cursor) -> list[dict[str, Any]]:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise cursor.not_text(error) from error
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        if joined := _joined(text):
            return joined
        raise cursor.error(f"not JSON: {error}; each line must be one JSON object") from error
    if not isinstance(values, dict):
        raise cursor.error(f"a JSON {type(values).__name__}, not an object; each line must be one JSON object")
    return [values]


def _joined(text: str) -> list[dict[str, Any]]:
    """Return the objects of a line without line ends between them; empty if it is not that."""
    found: list[dict[str, Any]] = []
    place, text = 0, text.strip()
    while place < len(text):
        try:
            values, place = _JSON.raw_decode(text, place)
        except (ValueError, RecursionError):
            return []
        if not isinstance(values, dict):
            return []
        found.append(values)
        while place < len(text) and text[place].isspace():
            place += 1
    return found


PARQUET_BATCH_ROWS = 256
PARQUET_BUFFER_BYTES = 2**18


def read_parquet(stream: io.BufferedReader, cursor: Cursor) -> Iterator[dict[str, Any]]:
    """Yield the rows of all row groups; times are datetimes in microseconds."""
    import pyarrow as pa  # not at the top: the command line needs only `Format`
    import pyarrow.parquet as pq

    with tempfile.TemporaryFile() as spooled:
        content: BinaryIO = stream
        if not isinstance(stream.raw, io.FileIO):  # Parquet is read from its end, and packed data can't seek
            shutil.copyfileobj(stream, spooled, 2**16)
            spooled.seek(0)
            content = spooled
        try:
            # INT96 has the years 1 to 9999 in microseconds; Arrow's default, nanoseconds, wraps around in 2262.
            file = pq.ParquetFile(content, buffer_size=PARQUET_BUFFER_BYTES, coerce_int96_timestamp_unit="us")
            names = file.schema_arrow.names
            if doubled := twice(names):
                raise cursor.error(f"two columns are named {doubled[0]!r}; give each column its own name")
            cursor.row = 1
            for group in range(file.num_row_groups):  # one iterator over all groups would keep their memory
                for batch in file.iter_batches(PARQUET_BATCH_ROWS, row_groups=[group], use_threads=False):
                    columns = [_values(column, name, cursor) for name, column in zip(names, batch.columns, strict=True)]
                    for row in zip(*columns, strict=True):
                        yield dict(zip(names, row, strict=True))
                        cursor.row += 1
        except KeyError as error:
            raise cursor.error(f"a column has times of the zone {error}, which is unknown") from error
        except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
            if isinstance(error, OSError) and error.errno is not None:
                raise  # an error of the disk, not of the file
            raise cursor.error(f"not readable as Parquet: {error}") from error


def twice(names: Sequence[str]) -> list[str]:
    """Return the names that occur more than once, sorted."""
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _values(column: Any, name: str, cursor: Cursor) -> list[Any]:
    """Return the values of a column: microseconds as datetimes, since Arrow returns nanoseconds as pandas objects.

    Numbers of float32 and float16 keep their type, since ids are not exact in them. A time that Python has no year for
    is text, and a text that is not UTF-8 is bytes, so that its own row is judged.

    Raises:
        DataError: such a value is inside a nested one; names the column.
    """
    import pyarrow as pa

    if pa.types.is_timestamp(column.type) and column.type.unit == "ns":
        column = column.cast(pa.timestamp("us", column.type.tz), safe=False)
    if (narrow := _NARROW.get(str(column.type))) is not None:
        return [None if value is None else narrow(value) for value in column.to_pylist()]
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError) as error:
        if pa.types.is_nested(column.type):
            problem = f"row {cursor.row} or one of the next {len(column) - 1}, column {name!r}: {error}; leave it out"
            raise DataError(f"{cursor.path}, {problem}") from error
        column = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        return [_value(each) for each in column]


_NARROW = {"float": Float32, "halffloat": Float16}  # by Arrow's names


def _value(scalar: Any) -> Any:
    import pyarrow as pa

    try:
        return scalar.as_py()
    except UnicodeDecodeError:
        return scalar.as_buffer().to_pybytes()
    except (OverflowError, ValueError):
        return scalar.cast(pa.string()).as_py()


RECORDS = ("item", "entry")
CHUNK_BYTES = 2**16
_MOST_NESTED = 32  # elements in each other; no feed has more than a few
_GOOGLE = "http://base.google.com/ns/"  # the namespace of `g:` and of `c:`, a merchant's own attributes
_SHOWN = 8  # names of elements in an error


class _Element(NamedTuple):
    name: str
    of_google: bool
    link: str  # the attribute `href`, which holds the value of Atom's `link`
    text: list[str]
    whole: list[str]  # `text`, and that of the elements in it
    values: dict[str, Any]
    theirs: set[str]  # names in `values` that are of Google's namespace


class _Records:
    """Handlers of expat that collect whole records."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._open: list[_Element] = []  # from the record inwards; empty outside of a record
        self._chars = 0
        self.encoding = ""  # named by the first line
        self.found: list[dict[str, Any]] = []
        self.seen: dict[str, None] = {}  # names of elements outside of records

    def declaration(self, _: str, encoding: str | None, __: int) -> None:
        self.encoding = encoding or ""

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        space, _, name = tag.rpartition(" ")
        if not self._open and name not in RECORDS:
            if len(self.seen) < _SHOWN:
                self.seen[name] = None
            return
        if len(self._open) == _MOST_NESTED:
            raise self._cursor.error(f"more than {_MOST_NESTED} elements in each other; it is no feed of items")
        of_google = space.startswith(_GOOGLE)
        self._open.append(_Element(name, of_google, attributes.get("href", ""), [], [], {}, set()))

    def data(self, text: str) -> None:
        if self._open:
            self._open[-1].text.append(text)
            self._open[-1].whole.append(text)
            self._chars += len(text)
            if self._chars > MAX_ROW_BYTES:
                raise self._cursor.error(f"an item of more than {MAX_ROW_BYTES // 2**20} MiB; check --format")

    def end(self, _: str) -> None:
        if not self._open:
            return
        element = self._open.pop()
        if not self._open:
            self.found.append(element.values)
            self._chars = 0
            return
        whole = "".join(element.whole)
        parts = None if "".join(element.text).strip() else element.values  # `A <b>blue</b> lamp` is a text
        _put(self._open[-1], element, parts or whole.strip() or element.link or None)
        self._open[-1].whole.append(whole or " ")  # a line break parts words

    def doctype(self, *_: object) -> None:
        raise self._cursor.error(
            "it has a document type (<!DOCTYPE), which may define entities without bounds; a feed needs none: take "
            "that line out, or export the feed as CSV or TSV"
        )


def read_xml(stream: io.BufferedReader, cursor: Cursor) -> Iterator[dict[str, Any]]:
    """Yield the items as name -> text, without namespaces; a dict of nested elements, and a list of repeated ones.

    Raises:
        DataError: the file is not well-formed, has a document type, or has neither `item` nor `entry`.
    """
    records = _Records(cursor)
    parser = expat.ParserCreate(namespace_separator=" ")
    parser.buffer_text = True
    parser.XmlDeclHandler = records.declaration
    parser.StartElementHandler = records.start
    parser.EndElementHandler = records.end
    parser.CharacterDataHandler = records.data
    parser.StartDoctypeDeclHandler = records.doctype
    more = True
    while more:
        content = stream.read(CHUNK_BYTES)
        more = bool(content)
        broken: expat.ExpatError | None = None
        try:
            parser.Parse(content, not more)
        except expat.ExpatError as error:
            broken = error
        except (LookupError, ValueError) as error:
            utf8 = f"iconv -f {records.encoding} -t UTF-8 {cursor.path.name} | sed '1s/ encoding=[^ ?]*//'"
            raise cursor.error(
                f"its encoding {records.encoding!r} is not read ({error}); convert it: {utf8} > utf8-{cursor.path.name}"
            ) from error
        for values in records.found:  # also in the part before an error
            cursor.row += 1
            yield values
        records.found.clear()
        if broken:
            said = f"not readable as XML: {expat.ErrorString(broken.code)} in line {broken.lineno}"
            way_out = "export it again" if more else "it is cut off; fetch it again"
            raise cursor.error(f"{said}; {way_out}") from broken
    if not cursor.row:
        names = ", ".join(f"<{name}>" for name in records.seen)
        raise cursor.error(
            f"no <item> of RSS and no <entry> of Atom in it, but {names}; export it as CSV or JSON Lines"
        )


def _put(into: _Element, element: _Element, value: Any) -> None:
    """Add a value. Google's element wins over one of the same name, such as RSS's own `link`; others make a list."""
    name, values = element.name, into.values
    if name not in values or (element.of_google and name not in into.theirs):
        values[name] = value
    elif element.of_google == (name in into.theirs):
        values[name] = [*(values[name] if isinstance(values[name], list) else [values[name]]), value]
    if element.of_google:
        into.theirs.add(name)
