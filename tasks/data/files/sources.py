"""A user's files, found in a folder or at `s3://bucket/prefix`, unpacked, and read record by record.

Paths may have partitions. Objects are streamed; nothing is written to a local disk. Packed files (gzip, bzip2, xz,
Zstandard) are recognised by their first bytes and not by their names. One record at a time is in memory, or one
small batch of Parquet. Columns are not interpreted here.
"""

import bz2
import datetime as dt
import gzip
import io
import lzma
import os
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, cast

from tasks.data.files.csv_rows import DETECTED, CsvForm, CsvOptions, read_csv
from tasks.data.files.formats import (
    PACKINGS,
    SUFFIXES,
    Format,
    content_by_magic,
    foreign_content,
    format_of,
    format_of_name,
)
from tasks.data.files.readers import Cursor, SourceRow, TakeUnreadable, Unread, read_jsonl, read_parquet, read_xml
from tasks.data.files.values import NUMBER
from tasks.foundation.errors import ConfigError, DataError
from tasks.foundation.s3_path import SCHEME, S3Path

if TYPE_CHECKING:
    from infra.store.s3_store import S3Store

BUFFER_BYTES = 2**16


class Place(NamedTuple):
    """A file that can be read."""

    path: PurePath
    bytes: int
    modified: dt.datetime  # in UTC


class Listing(NamedTuple):
    """The files of a source, sorted by path; one of the path itself, or all below a folder."""

    is_file: bool
    places: tuple[Place, ...]


def source_path(text: str) -> PurePath:
    """Return the path of an input. Raises ConfigError: the scheme is not s3, or no bucket is named."""
    if text.startswith(SCHEME):
        if not text.removeprefix(SCHEME).strip("/"):
            raise ConfigError(f"{text!r}: name a bucket, as in s3://bucket/prefix")
        return S3Path(text)
    if "://" in text:
        raise ConfigError(f"{text!r}: a source is a local file or folder, or s3://bucket/prefix")
    return Path(text).expanduser()


def list_source(source: PurePath) -> Listing:
    """Return the files of a source.

    Raises:
        ConfigError: nothing has this path, or it is neither a file nor a folder; the bucket refuses to list it; a
            folder below it can't be opened, or a link there leads nowhere.
        StoreError: the bucket does not answer.
    """
    if isinstance(source, S3Path):
        store, key = _in_bucket(source)
        entries = store.entries(key)
        if not entries:
            raise ConfigError(f"--source {source}: no such object, and none below it")
        bucket = S3Path(store.uri)
        found = tuple(Place(bucket / each.key, each.bytes, each.modified.astimezone(dt.UTC)) for each in entries)
        return Listing(bool(key) and found[0].path == source, found)
    path = Path(source)
    if not path.exists():
        raise ConfigError(f"--source {source}: no such file or folder")
    if path.is_file():
        return Listing(True, tuple(_local([path])))
    if not path.is_dir():
        raise ConfigError(f"--source {source}: neither a file nor a folder")
    return Listing(False, tuple(_local(sorted(_below(path)))))


def open_place(place: Place) -> io.BufferedReader:
    """Open a file for reading. Raises ConfigError: it can't be opened."""
    if isinstance(place.path, S3Path):
        store, key = _in_bucket(place.path)
        return io.BufferedReader(store.stream(key, place.bytes), BUFFER_BYTES)
    try:
        return io.BufferedReader(io.FileIO(str(place.path)), BUFFER_BYTES)
    except OSError as error:
        raise ConfigError(f"--source {place.path}: cannot be opened: {error.strerror}") from error


def _refuse_change(place: Place) -> None:
    """Raise DataError if a local file is not as it was listed. A bucket refuses to stream a changed object."""
    if isinstance(place.path, Path) and next(iter(_local([place.path]))) != place:
        raise DataError(
            f"{place.path}: the file changed while it was read, so its last row may be half a row; give the command "
            "again when it is complete, or name a copy of it"
        )


def _local(paths: Iterable[Path]) -> Iterable[Place]:
    for path in paths:
        status = path.stat()
        yield Place(path, status.st_size, dt.datetime.fromtimestamp(status.st_mtime, dt.UTC))


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, each once: a link to a file or folder that is there anyway adds nothing.

    Folders that no reader enters are left out, so they may be closed.
    """
    folders, links, seen = [folder], list[Path](), set[str]()
    while folders or links:
        path = folders.pop() if folders else links.pop(0)
        real = os.path.realpath(path)
        if real in seen:
            continue
        seen.add(real)
        if path.is_symlink() and not path.exists():
            raise ConfigError(
                f"--source {path}: a link to {path.readlink()}, which is not there; fetch that, or remove the link"
            )
        if path.is_file():
            yield path
        elif path.is_dir():
            inside = [each for each in _entries(path) if not _is_hidden(each.name) or each.name in _TABLES]
            links += sorted(each for each in inside if each.is_symlink())
            folders += [each for each in inside if not each.is_symlink()]


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise ConfigError(
            f"--source {folder}: the folder cannot be opened: {error.strerror}; allow this user to read it, or name "
            "the folders beside it one by one"
        ) from error


def _in_bucket(path: S3Path) -> "tuple[S3Store, str]":
    """Return the store of the whole bucket, and the key in it."""
    from infra.store.s3_store import S3Store  # it loads boto3, which local files do not need

    return S3Store(f"{SCHEME}{path.bucket}"), path.key


_OF_DISKS = "lost+found"  # at the root of a disk, closed to users
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
_TABLES = {  # folder of a table's log -> name, and its function in DuckDB
    "_delta_log": ("a Delta table", "delta_scan"),
    "metadata": ("an Iceberg table", "iceberg_scan"),
    ".hoodie": ("a Hudi table", ""),
}


class SourceFile(NamedTuple):
    """A file, and the columns that its path gives: `event` of `event=click/part-0.parquet`."""

    place: Place
    partition: Mapping[str, str | int | None]


def find_files(source: PurePath, listing: Listing, form: Format) -> list[SourceFile]:
    """Return the file itself, or all visible files below a folder with a suffix of the format, sorted.

    Raises:
        ConfigError: the folder has no such file, has one under two packings, or is a table whose log says which of its
            files count.
    """
    if listing.is_file:
        return [SourceFile(listing.places[0], {})]
    suffixes = [f"{suffix}{packing}" for suffix in SUFFIXES[form] for packing in ("", *PACKINGS)]
    found = [each for each in visible(source, listing) if each.path.name.lower().endswith(tuple(suffixes))]
    if not found:
        plain = ", *".join(SUFFIXES[form])
        raise ConfigError(f"--source {source}: no {form.value} file in this folder; looked for *{plain}")
    _refuse_two_packings(source, [each.path for each in found])
    return [SourceFile(each, partition_of(each.path.relative_to(source))) for each in found]


def visible(source: PurePath, listing: Listing) -> list[Place]:
    """Return all files below a folder except hidden and writers' own ones: names with `.` or `_` first."""
    return [each for each in listing.places if not any(map(_is_hidden, each.path.relative_to(source).parts))]


def partition_of(path: PurePath) -> dict[str, str | int | None]:
    """Return the columns in the folders of a path, as Hive and Spark write them: `day=2026-11-20/hour=7/x.csv`.

    A whole number without leading zeros is a number, `__HIVE_DEFAULT_PARTITION__` is null, the rest is text.
    """
    found: dict[str, str | int | None] = {}
    for part in path.parts[:-1]:
        name, separator, value = part.partition("=")
        if separator and name:
            text = urllib.parse.unquote(value)
            whole = NUMBER.fullmatch(text) and text.lstrip("-").isdecimal()
            found[urllib.parse.unquote(name)] = None if text == _NO_VALUE else int(text) if whole else text
    return found


def refuse_tables(folder: PurePath, listing: Listing) -> None:
    """Raise ConfigError for a folder that is a table with a log, which keeps replaced and deleted rows in its files."""
    inside = [each.path.relative_to(folder) for each in listing.places]
    for log, (name, function) in _TABLES.items():
        logs = [path for path in inside if path.parts[0] == log and len(path.parts) > 1]
        if not logs or (log == "metadata" and not any(path.name.endswith(".metadata.json") for path in logs)):
            continue
        target = f"{folder.name}.parquet"
        export = f"python -c \"import duckdb; duckdb.sql(\\\"COPY (FROM {function}('{folder}')) TO '{target}'\\\")\""
        way_out = f"export its rows first: {export}" if function else "export its rows with the engine that wrote it"
        raise ConfigError(
            f"--source {folder}: {name}; its files hold replaced and deleted rows too, and its log ({log}) says which "
            f"count. Name what has the rows alone: {way_out}"
        )


def _refuse_two_packings(source: PurePath, found: list[PurePath]) -> None:
    plain: dict[PurePath, PurePath] = {}
    for path in found:
        packing = next((each for each in PACKINGS if path.name.lower().endswith(each)), "")
        stem = path.with_name(path.name[: len(path.name) - len(packing)])
        if stem in plain:
            names = f"{plain[stem].relative_to(source)} and {path.relative_to(source)}"
            raise ConfigError(f"--source {source}: {names} are one file in two packings; remove one of them")
        plain[stem] = path


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or (name.startswith("_") and "=" not in name) or name == _OF_DISKS


_MAGICS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


def plain(raw: io.BufferedReader, cursor: Cursor) -> io.BufferedReader:
    """Return the unpacked content, of a file that was packed twice too.

    Raises:
        DataError: the file is empty, or its content is of another format, which the message names.
    """
    start = raw.peek(BUFFER_BYTES)
    packing = next((name for magic, name in _MAGICS.items() if start.startswith(magic)), None)
    if packing is not None:
        return plain(io.BufferedReader(_unpacked(raw, packing), BUFFER_BYTES), cursor)
    if foreign := foreign_content(cursor.path, start, cursor.form):
        raise cursor.error(foreign)
    return raw


def _unpacked(raw: BinaryIO, packing: str) -> io.RawIOBase:
    if packing == "gzip":
        return cast(io.RawIOBase, gzip.GzipFile(fileobj=raw, mode="rb"))
    if packing == "bzip2":
        return cast(io.RawIOBase, bz2.BZ2File(raw))
    return cast(io.RawIOBase, lzma.LZMAFile(raw)) if packing == "xz" else _Zstandard(raw)


class _Zstandard(io.RawIOBase):
    """Arrow's reader of Zstandard as a stream of the standard library."""

    def __init__(self, raw: BinaryIO) -> None:
        import pyarrow as pa  # not at the top: the command line needs only `Format`

        self._stream: Any = pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


class SourceReader:
    """Iterates over the records of a file or a folder; `bytes_read` of `bytes_total` is its progress.

    Raises, when created:
        ConfigError: the path does not exist or is not readable, its name gives no format, the folder has no file of
            this format, or is a table with a log.
    Raises, while iterating:
        DataError: a file is damaged, no file has a row, or a record is unreadable; names file and row.
    """

    def __init__(
        self,
        source: PurePath,
        form: Format | None = None,
        csv: CsvOptions = DETECTED,
        unreadable: TakeUnreadable | None = None,
    ) -> None:
        """Find the files.

        Args:
            form: None: the names of the files give it.
            csv: the delimiter and the quoting of CSV, as far as they are given.
            unreadable: takes the rows that can't be read, up to a share; None: the first one is an error.
        """
        listing = list_source(source)
        if not listing.is_file:
            refuse_tables(source, listing)
        names = [source.name] if listing.is_file else [each.path.name for each in visible(source, listing)]
        if form is None and listing.is_file and format_of_name(source.name) is None:
            with open_place(listing.places[0]) as raw:
                if known := content_by_magic(source, raw.peek(BUFFER_BYTES)):
                    raise ConfigError(f"--source {source}: {known}")
        form = form or format_of(source, names, listing.is_file)
        for option, given in (("--delimiter", csv.delimiter), ("--quote", csv.quote)):
            if given is not None and form is not Format.csv:
                raise ConfigError(f"{option}: {form.value} has none; leave it out, or give --format csv")
        self.form = form
        self.csv = csv
        self.is_file = listing.is_file
        self.forms: dict[PurePath, CsvForm] = {}  # form of each CSV file
        self._found = find_files(source, listing, form)
        self.files = [file.place.path for file in self._found]
        self.modified = max(file.place.modified for file in self._found)
        self.empty_files = 0
        self._unread = Unread(unreadable)
        self.bytes_total = sum(file.place.bytes for file in self._found)
        self.bytes_read = 0

    def __iter__(self) -> Iterator[SourceRow]:
        before = rows = 0
        for place, partition in self._found:
            path, size, _ = place
            cursor = Cursor(path, self.form, self._unread, rows)
            if not size and (self.form is Format.parquet or len(self.files) == 1):
                raise DataError(f"{path}: the file is empty; complete it, or remove it")
            with open_place(place) as raw, cursor.explaining():
                for values in self._records(raw, cursor):
                    self.bytes_read = max(self.bytes_read, before + min(raw.tell(), size))  # Parquet jumps
                    cursor.rows += 1
                    yield SourceRow(path, cursor.row, {**partition, **values} if partition else values)
                _refuse_change(place)
            self.empty_files += not cursor.rows
            if not cursor.rows and not self._unread.rows and len(self.files) == 1:
                raise DataError(f"{path}: the file has no rows; complete it, or remove it")
            rows += cursor.rows
            before += size
        if not rows and not self._unread.rows:
            raise DataError(f"{self.files[0]} and {len(self.files) - 1} other files have no rows; export them again")
        self._unread.judge(rows)
        self.bytes_read = self.bytes_total

    def _records(self, raw: io.BufferedReader, cursor: Cursor) -> Iterator[dict[str, Any]]:
        if not raw.peek(1):
            return iter(())
        stream = plain(raw, cursor)
        match self.form:
            case Format.csv:
                return read_csv(stream, cursor, self.csv, self.forms)
            case Format.jsonl:
                return read_jsonl(stream, cursor)
            case Format.parquet:
                return read_parquet(stream, cursor)
            case Format.xml:
                return read_xml(stream, cursor)
