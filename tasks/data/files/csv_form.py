"""Detect the form of a CSV file: its delimiter, its quoting, and a missing header."""

import csv
import enum
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from tasks.data.files.times import parse_time
from tasks.data.files.values import NUMBER, is_missing, is_missing_word
from tasks.foundation.errors import ConfigError

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
_SAMPLE_RECORDS = 50
_SEPARATOR_LINE = re.compile(rb'(?:\xef\xbb\xbf)?"?sep=([^"\r\n])"?\r?\n')  # Excel's own hint, before the header
_LONGEST_NAME = 64  # characters of a column name; a longer one is a text
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


def looks_like_a_row(header: Sequence[str]) -> bool:
    """Return True if a header has an unlikely column name: a number, a time, a long, empty or repeated text."""
    return len(set(header)) < len(header) or any(_is_a_value(name) for name in header)


def _is_a_value(name: str) -> bool:
    text = name.strip()
    if not text or len(text) > _LONGEST_NAME or NUMBER.fullmatch(text):
        return True
    try:
        parse_time(text)
    except (ValueError, OverflowError):
        return False
    return True


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
