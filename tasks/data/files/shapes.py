"""The shape of a value: its meaning by its spelling."""

import datetime as dt
import re
from decimal import Decimal

from tasks.data.files.facts import Shape
from tasks.data.files.spelling import COMMA_NUMBER, DAY_FIRST, Spelling
from tasks.data.files.times import RFC_822, parse_time
from tasks.data.files.values import is_missing

_TRUE = "ja yes oui si sí sì sim tak evet igen wahr vrai vero verdadero はい y j"
_FALSE = "nein no non não nie hayır nem falsch faux falso いいえ n nee"
TRUE_WORDS = frozenset(_TRUE.split())
FALSE_WORDS = frozenset(_FALSE.split())
_LONGEST_WORD = 9
_BRACKETED = ("(not set)", "(not provided)", "(other)", "(none)", "(blank)")
PLACEHOLDERS = frozenset([*_BRACKETED, "null", "undefined", "nan", "n/a", "none"])
_ISO = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}")


# Signs of faulty texts, as parts of a pattern for `re` and for RE2 alike.
# UTF-8 read as Latin-1 or Windows-1252, and replacement characters.
MISREAD = "[\u00c3\u00c2][\u0080-\u00bf\u0152\u0153\u0178\u2013-\u2122]|\u00e2\u20ac|\ufffd"
MARKUP = r"&(?:[a-zA-Z]{2,8}|#\d{1,6});|</?[a-zA-Z][^<>]{0,40}>"


def shape_of(value: object, spelling: Spelling) -> Shape | None:
    """Return the shape of a value; None for a missing one."""
    if is_missing(value):
        return None
    match value:
        case bool():
            return Shape.boolean
        case int():
            return Shape.number
        case float() | Decimal():
            return Shape.number
        case str():
            return _shape_of_text(value.strip(), spelling)
        case dt.date():  # also a time of a day
            return Shape.time
        case dict() | list() | tuple():
            return Shape.nested
        case _:
            return Shape.text


def _shape_of_text(text: str, spelling: Spelling) -> Shape:
    kind, _ = spelling.typed(text)
    if kind not in (None, "string"):
        return Shape.boolean if kind == "bool" else Shape.number
    if text[0].isdigit() or text[0] in "+-":
        if COMMA_NUMBER.fullmatch(text):
            return Shape.decimal_comma
        if DAY_FIRST.fullmatch(text):
            return Shape.time if spelling.dayfirst else Shape.day_first
        if _ISO.match(text) and _is_time(text):
            return Shape.time
    if RFC_822.match(text) and _is_time(text):
        return Shape.time
    if len(text) <= _LONGEST_WORD and text.casefold() in TRUE_WORDS | FALSE_WORDS:
        return Shape.word
    return Shape.text


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except (ValueError, OverflowError):
        return False
    return True
