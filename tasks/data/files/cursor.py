"""Records of a source, and the position of a reader in a file, which errors name."""

import contextlib
import gzip
import lzma
import zlib
from collections.abc import Callable, Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

from tasks.data.files.formats import Format
from tasks.data.files.values import short
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
