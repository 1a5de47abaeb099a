"""Convert single values of a source to null or text, and tell missing ones, by one rule for all formats.

Null, NaN, a blank text and `\\N` are missing everywhere. Words such as `NaN` or `null` are missing in a column of
ids, numbers or booleans; in a column of texts they are texts, since nan is a bread.
"""

import datetime as dt
import json
import math
import re
from decimal import Decimal

Scalar = bool | int | float | str | None


class Float32(float):
    """A number of a column of float32."""


class Float16(float):
    """A number of a column of float16."""


# Type -> bits of its fraction: each whole number below 2 to that power is exact.
EXACT_BITS: dict[type[float], int] = {float: 53, Float32: 24, Float16: 11}

# Digits with a leading zero are a code, for example a postcode, not a number.
NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
# 4.00638E+12, as spreadsheets show long numbers; codes such as 12E4 have no sign.
SCIENTIFIC = re.compile(r"[+-]?[0-9](?:[.,][0-9]+)?[eE]\+[0-9]{2,3}")
_WHOLE_FLOAT = re.compile(r"(-?[1-9][0-9]*)\.0|-?(0)\.0")  # -0.0 is 0, as in typed formats
_NULL = r"\N"  # as Hive, MySQL and PostgreSQL write it
# Not `Nan`, which is a name.
_MISSING_WORDS = frozenset(["nan", "NaN", "NAN", "null", "NULL", "Null", "None", "NONE", "none", "NaT", "<NA>", "#N/A"])


def scalar(value: object) -> Scalar:
    """Return a value as null, bool, number or text. A missing value becomes null, a nested value becomes JSON.

    Raises:
        UnicodeDecodeError: bytes that are not UTF-8 text.
    """
    if is_missing(value):
        return None
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            return scalar(value.decode())
        case dict() | list() | tuple():
            return json.dumps(value, ensure_ascii=False, default=str)
        case _:
            return str(value)


def legible(value: object) -> object:
    """Return bytes as text, with a mark in place of each that is not UTF-8; another value as it is."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def is_missing(value: object) -> bool:
    """Return True for a value that is missing in a column of any type: null, NaN, a blank text, `\\N`."""
    match value:
        case None:
            return True
        case str():
            return value == _NULL or not value.strip()
        case float():
            return math.isnan(value)
        case Decimal():
            return value.is_nan()
        case _:
            return False


def as_text(value: bool | int | float | str) -> str:
    """Format a scalar: true, 12, 12.5. A whole number looks the same as int and as float."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value)


def whole_text(text: str) -> str:
    """Return `12345` for `12345.0`, as pandas writes whole numbers of a column with gaps; another text as it is."""
    whole = _WHOLE_FLOAT.fullmatch(text)
    return whole[1] or whole[2] if whole else text


def is_missing_word(value: object) -> bool:
    """Return True for a text that stands for a missing id, number or boolean, such as NaN or null."""
    return isinstance(value, str) and value.strip() in _MISSING_WORDS


def short(value: object) -> str:
    """Return a value shortened for error messages."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
