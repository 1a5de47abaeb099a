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
# UTF-8 read as Latin-1 or Windows-1252 shows each letter beyond ASCII as a lead (by the number of its bytes) and
# _FOLLOW signs. Honest texts have some of these pairs, as in `NESCAFÉ®` or `Spaß“`: so a pair counts alone only
# for leads and signs that no text has side by side, and others only if two letters in a row are misread.
_FOLLOW = "[\u0080-\u00bf\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u2013-\u203a\u20ac\u2122]"
_SELDOM = (
    "[\u0080-\u009f\u00a1-\u00a8\u00aa\u00ac\u00ad\u00af\u00b1\u00b4-\u00b8\u00bc-\u00bf"
    "\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192\u02c6\u02dc\u201a\u201e\u2020\u2021\u2030\u2039\u203a\u20ac]"
)
MISREAD = "|".join(
    (
        f"[\u00c2\u00c3]{_FOLLOW}",  # Western European letters
        f"[\u00c4\u00c5]{_SELDOM}",  # Polish, Czech, Turkish
        f"(?:[\u00c4-\u00df]{_FOLLOW}){{2}}",  # Greek, Cyrillic, Hebrew, Arabic
        "\u00e2(?:\u20ac|\u201a\u00ac|\u201e\u00a2|\u0153)",  # dashes, quotes, the signs of euro and trade mark
        f"(?:[\u00e0-\u00ef]{_FOLLOW}{_FOLLOW}){{2}}",  # Chinese, Japanese, Korean, Indian scripts
        "\u00f0[\u0178\u009f]",  # emoji
        "[\u0080-\u0084\u0086-\u009f]",  # control characters that only misreading makes; U+0085 is a line break
        "(?:[\u0420\u0421][^\\s\u0420\u0421]){4}",  # Cyrillic read as Windows-1251
        "\u951f\u65a4\u62f7",  # replacement characters read as GBK
        "\ufffd",
    )
)
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
