"""Read records from a user's files: JSONL, CSV, Parquet or XML, plain or packed, one file or a folder.

One record at a time is in memory, or one small batch of Parquet. This module does not interpret columns.
"""

import io
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any

from tasks.data.files.csv_form import CsvForm
from tasks.data.files.csv_rows import DETECTED, CsvOptions, read_csv
from tasks.data.files.cursor import Cursor, SourceRow, TakeUnreadable, Unread
from tasks.data.files.formats import Format, content_by_magic, format_of, format_of_name
from tasks.data.files.json_rows import read_jsonl
from tasks.data.files.packing import plain
from tasks.data.files.parquet_rows import read_parquet
from tasks.data.files.places import BUFFER_BYTES, find_files, list_source, open_place, refuse_tables, visible
from tasks.data.files.xml_rows import read_xml
from tasks.foundation.errors import ConfigError, DataError


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
