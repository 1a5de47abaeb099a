"""Lists in a cell: a list of a typed format, a text of JSON or Python, or ids with a sign between them."""

import ast
import json
import re
from collections.abc import Sequence
from typing import Any

from tasks.data.files.values import is_missing, is_missing_word

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


def has_brackets(value: object) -> bool:
    """Return True for a list, and for a text with a list's brackets."""
    return looks_like_a_list(value) and (
        not isinstance(value, str) or value.strip()[:1] + value.strip()[-1:] in _BRACKETS
    )


def looks_like_a_list(value: object) -> bool:
    """Return True for a list, and for a text that is one or has several ids with a sign between them."""
    if isinstance(value, list | tuple):
        return True
    if not isinstance(value, str):
        return False
    text = value.strip()
    return text[:1] + text[-1:] in _BRACKETS or ("|" in text.strip("|") and " " not in text)


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
