"""The form of a CSV file: what separates its fields, and whether its first line is a header."""

import csv
import io
from collections.abc import Sequence

from tasks.data.times import parse_time
from tasks.data.values import NUMBER
from tasks.foundation.errors import ConfigError

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
_SAMPLE_RECORDS = 50
_LONGEST_NAME = 64  # characters of a column's name; longer is a text


def find_delimiter(start: str, whole: bool) -> str | None:
    """Return what separates the fields: what gives all records as many fields as the header; None: several do.

    Args:
        start: the first lines of the file, without a byte order mark.
        whole: this is all of the file; else its last line may be cut off.
    """
    fields = {delimiter: _fields(start, whole, delimiter) for delimiter in DELIMITERS.values()}
    fitting = [delimiter for delimiter, counts in fields.items() if counts[0] > 1 and len(set(counts)) == 1]
    if len(fitting) > 1:
        return None
    if fitting:
        return fitting[0]
    if fields[","][0] > 1:  # a file with a damaged line, which reading will name
        return ","
    return max(fields, key=lambda delimiter: fields[delimiter][0])


def parse_delimiter(text: str) -> str:
    """Return the delimiter of a name in DELIMITERS, or of one character. Raises ConfigError: it is neither."""
    delimiter = DELIMITERS.get(text, text)
    if len(delimiter) != 1 or delimiter in '"\r\n':
        raise ConfigError(f"--delimiter {text!r}: give {', '.join(DELIMITERS)}, or one character")
    return delimiter


def name_of(delimiter: str) -> str:
    """Return the word for a delimiter."""
    return next((name for name, each in DELIMITERS.items() if each == delimiter), repr(delimiter))


def looks_like_a_row(header: Sequence[str]) -> bool:
    """Return whether a header holds what no column is named: a number, a time, a long text, nothing, a text twice."""
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
    """Return the number of fields of the first records that are complete; the header's is always there."""
    counts: list[int] = []
    lines = io.StringIO(start, newline="\n").readlines()
    complete = lines if whole or len(lines) == 1 else lines[:-1]
    try:
        for cells in csv.reader(complete, delimiter=delimiter, strict=True):
            if cells:
                counts.append(len(cells))
            if len(counts) > _SAMPLE_RECORDS:
                break
    except csv.Error:  # a quote that ends beyond the sample, or never
        pass
    return counts or [0]
