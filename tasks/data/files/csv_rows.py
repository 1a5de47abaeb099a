"""Read the records of CSV. Each line is in one record, or the file is refused with the row that is wrong."""

import csv
import io
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from tasks.data.files.csv_form import (
    DELIMITERS,
    CsvForm,
    Quote,
    cells_of,
    find_form,
    holds_rows,
    name_of,
    number_columns,
    plain_line,
    separator_line,
)
from tasks.data.files.cursor import MAX_ROW_BYTES, Cursor
from tasks.data.files.parquet_rows import twice
from tasks.foundation.errors import DataError

SAMPLE_BYTES = 2**16  # read to tell the form of a file
MAX_FIELD_CHARS = 16 * 2**20  # longest cell; bounds the lines that an unclosed quote holds

_LINE = re.compile(rb"[^\n]*\n|[^\n]+")
_MARK = b"\xef\xbb\xbf"
_AS_TEXT = "or --quote none if quotes are plain characters, such as inch marks"


class CsvOptions(NamedTuple):
    """The options of a person for CSV; None: detected in each file."""

    delimiter: str | None = None
    quote: Quote | None = None


DETECTED = CsvOptions()


class _Line(NamedTuple):
    number: int
    content: bytes


class _Lines:
    """The lines of a file for a parser, which takes several for a record; they can be given back."""

    def __init__(self, stream: io.BufferedReader, cursor: Cursor, first: list[bytes]) -> None:
        """Begin with lines that were read already."""
        self._stream = stream
        self._cursor = cursor
        self._again = [_Line(cursor.line - n, line) for n, line in enumerate(reversed(first))]  # the next one last
        self._bytes = 0
        self.quote = Quote.double
        self.held: list[_Line] = []  # lines of the current record
        self.not_text: UnicodeDecodeError | None = None  # in the current record

    def __iter__(self) -> "_Lines":
        return self

    def __next__(self) -> str:
        if self._again:
            line = self._again.pop()
        else:
            content = self._stream.readline(MAX_ROW_BYTES + 1)
            if not content:
                raise StopIteration
            self._cursor.line += 1
            line = _Line(self._cursor.line, content)
        self.held.append(line)
        self._bytes += len(line.content)
        if self._bytes > MAX_ROW_BYTES:
            raise self._cursor.error(f"a row of more than {MAX_ROW_BYTES // 2**20} MiB; check --format")
        try:
            text = line.content.decode()
        except UnicodeDecodeError as error:
            self.not_text = self.not_text or error
            text = line.content.decode(errors="replace")  # the record is left out, but where it ends counts
        return plain_line(text, self.quote)

    def texts(self) -> list[str]:
        """Return the lines of the current record."""
        return [each.content.decode(errors="replace") for each in self.held]

    def next_record(self) -> None:
        self.held = []
        self._bytes = 0
        self.not_text = None

    def give_back(self) -> None:
        """Give back all lines of the current record but the first."""
        self._again += reversed(self.held[1:])
        del self.held[1:]


def read_csv(
    stream: io.BufferedReader, cursor: Cursor, options: CsvOptions, forms: dict[Any, CsvForm]
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file as column -> text, None for an empty cell; a row that is not CSV is set aside.

    Args:
        forms: gets the delimiter and the quoting of this file.

    Raises:
        DataError: the header can't be used; or a row can't be read, and such rows are not set aside.
    """
    start = stream.read(SAMPLE_BYTES)
    if b"\r" in start and b"\n" not in start:
        unix = f"tr '\\r' '\\n' < {cursor.path.name} > unix-{cursor.path.name}"
        raise cursor.error(f"its lines end with CR alone, as on an old Mac; convert it: {unix}")
    whole = len(start) < SAMPLE_BYTES
    start = start.removeprefix(_MARK) + (b"" if whole else stream.readline(MAX_ROW_BYTES))
    first = _LINE.findall(start)
    cursor.line = len(first)
    named = separator_line(start)
    first = first[1:] if named else first
    form = forms[cursor.path] = _form(first, whole, cursor, options, named)
    csv.field_size_limit(MAX_FIELD_CHARS)  # the standard limit is shorter than some reviews
    lines = _Lines(stream, cursor, first)
    lines.quote = form.quote
    records = cells_of(lines, form)
    try:
        names = next(filter(None, records), [])  # empty lines may precede it
    except csv.Error as error:
        raise cursor.error(f"its header is not CSV: {error}") from error
    if lines.not_text:
        raise cursor.not_text(lines.not_text)
    header = _header(names, cursor, form)
    numbers = number_columns([line.decode(errors="replace") for line in first], form.delimiter, len(header))
    while True:
        cursor.row += 1
        lines.next_record()
        try:
            cells = next(records, None)
            if cells is None:
                return
            if not cells:
                cursor.row -= 1
                continue
            if options.quote is None and len(lines.held) > 1:
                _refuse_rows_in_a_cell(lines, form, len(header), numbers, cursor)
        except csv.Error as error:
            _set_aside(lines, cursor, cursor.error(_fault(error, lines)), first_alone=True)
            continue
        except DataError as error:
            _set_aside(lines, cursor, error, first_alone=True)
            continue
        problem = cursor.not_text(lines.not_text) if lines.not_text else _ragged(cells, header, form, cursor)
        if problem is not None:
            _set_aside(lines, cursor, problem, first_alone=False)
            continue
        yield {name: cell or None for name, cell in zip(header, cells, strict=True)}


def _form(first: list[bytes], whole: bool, cursor: Cursor, options: CsvOptions, named: str | None) -> CsvForm:
    """Return the delimiter and the quoting of a file, as given, or detected from its first lines."""
    texts = [line.decode(errors="replace") for line in first]
    found = find_form(texts, whole, options.delimiter or named, options.quote)
    if found is None and ".tsv" in [suffix.lower() for suffix in cursor.path.suffixes]:
        found = find_form(texts, whole, DELIMITERS["tab"], options.quote)
    if found is not None:
        return found
    raise cursor.error(
        f"what separates the fields can't be told from its first lines; give --delimiter {', '.join(DELIMITERS)}"
    )


def _header(cells: list[str], cursor: Cursor, form: CsvForm) -> list[str]:
    """Return the names of the columns; one without a name, as of an index, is named by its place."""
    header = [name if name.strip() else f"column_{place}" for place, name in enumerate(cells, start=1)]
    if doubled := twice(header):
        problem = f"the header has column {doubled[0]!r} twice; give each column its own name"
        raise cursor.error(f"{problem}, and put a line of names first where there is none")
    others = [each for each in DELIMITERS.values() if each != form.delimiter and len(header) == 1 and each in header[0]]
    if others:
        raise cursor.error(
            f"no {name_of(form.delimiter)} separates the names in {header[0]!r:.80}, but {name_of(others[0])} may; "
            f"give --delimiter {name_of(others[0])}"
        )
    return header


def _refuse_rows_in_a_cell(lines: _Lines, form: CsvForm, fields: int, numbers: list[int], cursor: Cursor) -> None:
    """Refuse a cell whose lines are rows: its quote was not meant to quote."""
    texts = lines.texts()
    if holds_rows(texts, form.delimiter, fields, numbers):
        raise cursor.error(
            f"a quote opens a text that goes on for {len(texts)} lines, and these look like rows of their own: "
            f"{texts[0].strip()!r:.80}. Give --quote none if quotes are plain characters, such as inch marks, or "
            "--quote double if the text has these lines"
        )


def _fault(error: csv.Error, lines: _Lines) -> str:
    """Return the fault of a record, with the way out."""
    first = lines.texts()[0].strip() if lines.held else ""
    said = str(error)
    if "expected after" in said:
        return (
            f"not CSV: text follows a closing quote in {first!r:.80}; double a quote within a text, or give "
            f'--quote backslash if it is written as \\", {_AS_TEXT}'
        )
    if "unexpected end" in said:
        return f"not CSV: a quote opens in {first!r:.80} and is never closed; close it, {_AS_TEXT}"
    if "new-line character" in said:
        return "not CSV: a line end (CR) stands in a text without quotes; quote the text, or write its lines with LF"
    return f"not CSV: {error}, in {first!r:.80}; look for a quote that is never closed, {_AS_TEXT}"


def _ragged(cells: list[str], header: list[str], form: CsvForm, cursor: Cursor) -> DataError | None:
    if len(cells) < len(header):
        return cursor.error(f"{len(cells)} of {len(header)} fields: column {header[len(cells)]!r} is missing")
    if len(cells) > len(header):
        return cursor.error(
            f"{len(cells)} fields, but the header ends after {len(header)}, with column {header[-1]!r}; "
            f"quote fields that hold a {name_of(form.delimiter)}"
        )
    return None


def _set_aside(lines: _Lines, cursor: Cursor, error: DataError, first_alone: bool) -> None:
    """Leave out the lines of a record, or its first line alone, so that the others are read again as rows."""
    if first_alone:
        lines.give_back()
    if lines.held:
        cursor.set_aside(lines.held[0].number, b"".join(each.content for each in lines.held), error)
