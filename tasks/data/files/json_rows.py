"""Read the records of JSON Lines, one object a line; objects that a log service has joined on a line are read too."""

import io
import json
from collections.abc import Iterator
from typing import Any

from tasks.data.files.cursor import MAX_ROW_BYTES, Cursor
from tasks.foundation.errors import DataError

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
