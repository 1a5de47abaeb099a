"""Detect the delimiter of a CSV file, and a missing header."""

import csv
import io
import re
from collections.abc import Sequence

from tasks.data.files.times import parse_time
from tasks.data.files.values import NUMBER
from tasks.foundation.errors import ConfigError

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
_SAMPLE_RECORDS = 50
_SEPARATOR_LINE = re.compile(rb'(?:\xef\xbb\xbf)?"?sep=([^"\r\n])"?\r?\n')  # Excel's own hint, before the header
_LONGEST_NAME = 64  # characters of a column name; a longer one is a text


def find_delimiter(start: str, whole: bool) -> str | None:
    """Return the delimiter that gives all records as many fields as the header; None if several do.

    Args:
        start: the first lines of the file, without a byte order mark.
        whole: True if `start` is the whole file; else its last line may be truncated.
    """
    fields = {delimiter: _fields(start, whole, delimiter) for delimiter in DELIMITERS.values()}
    fitting = [delimiter for delimiter, counts in fields.items() if counts[0] > 1 and len(set(counts)) == 1]
    if len(fitting) > 1:
        return None
    if fitting:
        return fitting[0]
    if fields[","][0] > 1:  # a file with a damaged line; reading will report it
        return ","
    return max(fields, key=lambda delimiter: fields[delimiter][0])


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


def _fields(start: str, whole: bool, delimiter: str) -> list[int]:
    """Return the number of fields of the first complete records, the header's always."""
    counts: list[int] = []
    lines = io.StringIO(start, newline="\n").readlines()
    complete = lines if whole or len(lines) == 1 else lines[:-1]
    try:
        for cells in csv.reader(complete, delimiter=delimiter, strict=True):
            if cells:
                counts.append(len(cells))
            if len(counts) > _SAMPLE_RECORDS:
                break
    except csv.Error:  # a quote closes after the sample, or never
        pass
    return counts or [0]
