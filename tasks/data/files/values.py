"""Convert single values of a source to null, boolean, number or text, by one rule for all formats.

NaN is a missing number. The text `NaN` is a missing number in a column of numbers, else a text.
"""

import datetime as dt
import json
import math
import re
from decimal import Decimal

Scalar = bool | int | float | str | None

# Digits with a leading zero are a code, for example a postcode, not a number.
NUMBER = re.compile(r"[+-]?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_NAN = ("nan", "NaN", "NAN")  # not `Nan`, which is a name
_BOOLEANS = {"true": True, "false": False}


def scalar(value: object) -> Scalar:
    """Return a value as null, bool, number or text. NaN becomes null, a nested value becomes JSON.

    Raises:
        UnicodeDecodeError: bytes that are not UTF-8 text.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return None if math.isnan(value) else value
        case Decimal():
            if value.is_nan():
                return None
            return int(value) if value == value.to_integral_value() else float(value)
        case dt.datetime() | dt.date() | dt.time():
            return value.isoformat()
        case bytes():
            return value.decode()
        case dict() | list() | tuple():
            return json.dumps(value, ensure_ascii=False, default=str)
        case _:
            return str(value)


def kind_of_text(text: str) -> str | None:
    """Return the type of a text in an untyped format: float64, bool or string; None for NaN, which fits any type."""
    stripped = text.strip()
    if stripped in _NAN:
        return None
    if NUMBER.fullmatch(stripped):
        return "float64"
    return "bool" if stripped.lower() in _BOOLEANS else "string"


def as_text(value: bool | int | float | str) -> str:
    """Format a scalar: true, 12, 12.5. A whole number looks the same as int and as float."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    return str(value)


def as_float(value: bool | int | float | str) -> float | None:
    """Return a number, or text of a number, as float64; infinite if out of range, which validate refuses."""
    if is_nan_text(value):
        return None
    try:
        return float(value)
    except OverflowError:  # only an int can be too large
        return math.inf if int(value) > 0 else -math.inf


def as_bool(value: bool | int | float | str) -> bool | None:
    """Convert a boolean, or the text `true` or `false` in any case."""
    if is_nan_text(value):
        return None
    return value if isinstance(value, bool) else _BOOLEANS[str(value).strip().lower()]


def is_nan_text(value: object) -> bool:
    return isinstance(value, str) and value.strip() in _NAN


def short(value: object) -> str:
    """Return a value shortened for error messages."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."
