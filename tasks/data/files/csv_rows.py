"""Read the records of CSV, after the form of the file was detected: its delimiter, its quoting, a missing header.

Each line is in one record, or the file is refused with the row that is wrong.
"""

import csv
import enum
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tasks.data.files.readers import MAX_ROW_BYTES, Cursor, twice
from tasks.data.files.values import is_missing, is_missing_word
from tasks.foundation.errors import ConfigError, DataError

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
_SAMPLE_RECORDS = 50
_SEPARATOR_LINE = re.compile(rb'(?:\xef\xbb\xbf)?"?sep=([^"\r\n])"?\r?\n')  # Excel's own hint, before the header
_ESCAPED = re.compile(r'\\(["\\])')


class Quote(enum.StrEnum):
    """The meaning of quotes in a CSV file."""

    double = "double"  # a text may be quoted, and a quote in it is doubled, as RFC 4180 says
    backslash = "backslash"  # a text may be quoted, and a quote in it follows a backslash
    none = "none"  # a quote is a plain character


class CsvForm(NamedTuple):
    """The delimiter and the quoting of one file."""

    delimiter: str
    quote: Quote


def find_form(
    lines: Sequence[str], whole: bool, delimiter: str | None = None, quote: Quote | None = None
) -> CsvForm | None:
    """Return the form that gives all records as many fields as the header; None if several delimiters do.

    Quoting as in RFC 4180 is tried first, then backslashes, then plain quotes.

    Args:
        lines: the first lines of the file, without a byte order mark.
        whole: True if they are the whole file; else a record may go on after them.
        delimiter, quote: given by a person; None: detect it.
    """
    quotes = [Quote.double]
    if any('"' in line for line in lines):
        escaped = any('\\"' in line for line in lines)
        quotes = [Quote.double, Quote.backslash, Quote.none] if escaped else [Quote.double, Quote.none]
    quotes = [quote] if quote is not None else quotes
    delimiters = [delimiter] if delimiter is not None else [*DELIMITERS.values()]
    for each in quotes:
        fitting = [form for form in (CsvForm(one, each) for one in delimiters) if _fits(lines, form, whole)]
        if len(fitting) > 1:
            return None
        if fitting:
            return fitting[0]
    counts = {one: _parsed(lines, CsvForm(one, quotes[0]), whole)[0][0] for one in delimiters}
    if counts.get(",", 0) > 1:  # a file with a damaged line; reading will report it
        return CsvForm(",", quotes[0])
    return CsvForm(max(counts, key=lambda one: counts[one]), quotes[0])


def cells_of(lines: Iterable[str], form: CsvForm) -> Iterator[list[str]]:
    """Return an iterator over the records of lines, each a list of cells. It raises csv.Error and can then go on.

    Args:
        lines: as `plain_line` returns them.
    """
    if form.quote is Quote.none:
        return _Split(lines, form.delimiter)
    return csv.reader(lines, delimiter=form.delimiter, strict=True)


def plain_line(line: str, quote: Quote) -> str:
    """Return a line in which quotes within a quoted text are doubled."""
    if quote is not Quote.backslash or "\\" not in line:
        return line
    return _ESCAPED.sub(lambda found: '""' if found[1] == '"' else "\\", line)


def number_columns(lines: Sequence[str], delimiter: str, fields: int) -> list[int]:
    """Return the columns whose values begin with a digit, as times do, in most lines; the others have none.

    Lines with another number of fields than the header don't count.
    """
    rows = [cells for line in lines[1:] if len(cells := line.split(delimiter)) == fields]
    numeric = [place for place in range(fields) if all(_is_numeric(cells[place]) for cells in rows)]
    return [place for place in numeric if 2 * sum(_begins_with_digit(cells[place]) for cells in rows) > len(rows)]


def holds_rows(record: Sequence[str], delimiter: str, fields: int, numbers: Sequence[int]) -> bool:
    """Return True if the lines of a record look like several records: the quote in it was not meant to quote.

    A line after the first then has as many fields as the header if quotes don't count, and numbers in most of their
    places. Without columns of numbers, all lines must have as many fields, three or more.

    Args:
        numbers: as `number_columns` returns them.
    """
    split = [line.split(delimiter) for line in record]
    if not numbers:
        return fields > 2 and all(len(cells) == fields for cells in split)
    return any(
        len(cells) == fields and 2 * sum(_is_numeric(cells[place]) for place in numbers) >= len(numbers)
        for cells in split[1:]
    )


def _is_numeric(cell: str) -> bool:
    text = cell.strip(' "\r\n')
    return _begins_with_digit(cell) or is_missing(text) or is_missing_word(text)


def _begins_with_digit(cell: str) -> bool:
    return cell.strip(' "')[:1].isdigit()


def separator_line(start: bytes) -> str | None:
    """Return the delimiter that a first line `sep=;` names; None if the file has no such line."""
    found = _SEPARATOR_LINE.match(start)
    return found[1].decode(errors="replace") if found else None


def parse_delimiter(text: str) -> str:
    """Return the delimiter for a name in DELIMITERS, or for one character. Raises ConfigError: it is neither."""
    delimiter = DELIMITERS.get(text, text)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ConfigError(f"--delimiter {text!r}: give {', '.join(DELIMITERS)}, or one character")
    return delimiter


def name_of(delimiter: str) -> str:
    """Return the name of a delimiter."""
    return next((name for name, each in DELIMITERS.items() if each == delimiter), repr(delimiter))


class _Split:
    """The cells of lines in which a quote is a plain character."""

    def __init__(self, lines: Iterable[str], delimiter: str) -> None:
        self._lines = iter(lines)
        self._delimiter = delimiter

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        line = next(self._lines).rstrip("\r\n")
        return line.split(self._delimiter) if line else []


def _fits(lines: Sequence[str], form: CsvForm, whole: bool) -> bool:
    counts, sound = _parsed(lines, form, whole)
    return sound and counts[0] > 1 and len(set(counts)) == 1


def _parsed(lines: Sequence[str], form: CsvForm, whole: bool) -> tuple[list[int], bool]:
    """Return the fields of the first complete records, the header's always, and False if quotes don't fit."""
    counts: list[int] = []
    plain = [plain_line(line, form.quote) for line in lines]
    taken = _Taken(plain)
    begin = 0

    def numbers() -> list[int]:
        return number_columns(lines, form.delimiter, counts[0] if counts else 0)

    try:
        for cells in cells_of(taken, form):
            record, begin = lines[begin : taken.lines], taken.lines
            if cells:
                counts.append(len(cells))
            if len(record) > 1 and holds_rows(record, form.delimiter, counts[0], numbers()):
                return counts, False
            if len(counts) > _SAMPLE_RECORDS:
                break
    except csv.Error:  # a quote closes after the sample, or never
        cut = not whole and taken.lines == len(lines)
        return counts or [0], cut and not holds_rows(lines[begin:], form.delimiter, (counts or [0])[0], numbers())
    return counts or [0], True


class _Taken:
    """Lines that are counted as a parser takes them."""

    def __init__(self, lines: Sequence[str]) -> None:
        self._left: Any = iter(lines)
        self.lines = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line: str = next(self._left)
        self.lines += 1
        return line


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
