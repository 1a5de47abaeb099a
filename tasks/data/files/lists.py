"""Cells with several values: a list of a typed format, JSON or Python text, or values with a sign between them."""

import ast
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasks.data.files.values import is_missing, is_missing_word

EVENT = "event"  # column with the name of the column that a value came from, if several are taken apart
_SIGNS = ("|", ";", ",")  # the first that a text has parts it; else white space does
_BRACKETS = ("[]", "()", "{}")  # the last in PostgreSQL
_WITHOUT_COMMAS = re.compile(r"""(['"])\s+\1""")  # numpy's list of texts, which Python would join


def members(value: object) -> list[Any]:
    """Return the values of a cell in their order, each once and without missing ones; one value is a list of one.

    Text is read as JSON (`["a", "b"]`), as Python (`['a', 'b']`, also numpy's without commas), as PostgreSQL (`{a,b}`),
    or parted by `|`, `;`, `,` or white space.
    """
    found = _list_of(value)
    kept: dict[str, Any] = {}
    for each in found:
        each = each.strip() if isinstance(each, str) else each
        if not is_missing(each) and not is_missing_word(each):
            kept.setdefault(json.dumps(each, sort_keys=True, default=str), each)
    return [*kept.values()]


def exploded(values: Mapping[str, Any], columns: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield a record for each value in the cells of `columns`: the first column has it, the others are left out.

    With several columns, EVENT has the name of the value's column; a value that an earlier column has is not taken
    again, so what was shown and clicked is clicked.
    """
    first, *others = columns
    rest = {name: value for name, value in values.items() if name not in others}
    seen: set[str] = set()
    for column in columns:
        for each in members(values.get(column)):
            if (key := json.dumps(each, sort_keys=True, default=str)) not in seen:
                seen.add(key)
                yield {**rest, first: each, **({EVENT: column} if others else {})}


def looks_like_a_list(value: object) -> bool:
    """Return True for a list, and for a text that is one or has several ids with a sign between them."""
    if isinstance(value, list | tuple):
        return True
    if not isinstance(value, str):
        return False
    text = value.strip()
    return (text.startswith("[") and text.endswith("]")) or ("|" in text.strip("|") and " " not in text)


def _list_of(value: object) -> Sequence[Any]:
    if isinstance(value, list | tuple):
        return value
    if not isinstance(value, str):
        return [value]
    text = value.strip()
    if text[:1] + text[-1:] not in _BRACKETS:
        return _parted(text)
    for read in (json.loads, ast.literal_eval):
        try:
            found = None if _WITHOUT_COMMAS.search(text) else read(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(found, list | tuple):
            return found
    return [each.strip().strip("'\"") for each in _parted(text[1:-1].strip())]


def _parted(text: str) -> list[str]:
    sign = next((sign for sign in _SIGNS if sign in text), None)
    return text.split(sign) if sign else text.split()
