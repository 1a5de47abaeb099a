"""The types of texts in an untyped format, and the spelling of a European Excel: 43,49, 20.11.2026, ja."""

import datetime as dt
import math
import re
from collections.abc import Sequence, Set
from typing import Literal

from pydantic import Field

from tasks.data.files.values import NUMBER, as_text, is_missing_word
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record

_EXACT = 2**53  # float64 holds each whole number up to this one
_BOOLEANS = {"true": True, "false": False}


def kind_of_text(text: str) -> str | None:
    """Return the kind of a text in an untyped format, as `kind_of` does; None for a missing one, which fits any."""
    stripped = text.strip()
    if is_missing_word(stripped):
        return None
    if NUMBER.fullmatch(stripped):
        return kind_of_digits(stripped) if stripped.lstrip("+-").isdecimal() else "float64"
    return "bool" if stripped.lower() in _BOOLEANS else "string"


def kind_of_digits(text: str) -> str:
    """Return the kind of a whole number that is written in digits, perhaps of thousands."""
    digits = text.lstrip("+-")
    return "whole" if len(digits) < 16 or (len(digits) == 16 and int(digits) <= _EXACT) else "code"


def kind_of(value: bool | int | float | str) -> str:
    """Return the kind of a typed value: bool, float64, string, or of a whole number `whole` or `code`.

    A `code` is a whole number that float64 can't hold exactly, such as the id of a session.
    """
    match value:
        case bool():
            return "bool"
        case int():
            return "whole" if abs(value) <= _EXACT else "code"
        case float():
            return "float64"
        case _:
            return "string"


def type_of_kinds(kinds: Set[str]) -> str:
    """Return the type of a column whose values have these kinds: float64, bool or string.

    Whole numbers with codes among them are names, which stay exact as texts; with fractions among them they are
    measurements. A column without a value is float64.
    """
    if kinds == {"bool"}:
        return "bool"
    numbers = kinds <= {"whole", "code", "float64"}
    return "float64" if numbers and ("code" not in kinds or "float64" in kinds) else "string"


def as_code(value: bool | int | float | str) -> str | None:
    """Return a whole number as text, and None for a word that stands for a missing one."""
    return None if is_missing_word(value) else as_text(value)


def as_float(value: bool | int | float | str) -> float | None:
    """Return a number, or text of a number, as float64; infinite if out of range, which validate refuses."""
    if is_missing_word(value):
        return None
    try:
        return float(value)
    except OverflowError:  # only an int can be too large
        return math.inf if int(value) > 0 else -math.inf


def as_bool(value: bool | int | float | str) -> bool | None:
    """Convert a boolean, or the text `true` or `false` in any case."""
    if is_missing_word(value):
        return None
    return value if isinstance(value, bool) else _BOOLEANS[str(value).strip().lower()]


# 43,49; thousands may be grouped by points, blanks or apostrophes: 1.234,50. A leading zero means a code, as in NUMBER.
COMMA_NUMBER = re.compile(r"[+-]?(?:0|[1-9][0-9]{0,2}(?:[. '\u2019\xa0\u202f][0-9]{3})+|[1-9][0-9]*)(?:,[0-9]+)?")
_GROUPS = re.compile(r"[. '\u2019\xa0\u202f]")
_DATE = r"([0-9]{1,2})([./-])([0-9]{1,2})\2([0-9]{4}|[0-9]{2})"
_TIME = r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:[.,][0-9]+)?)?"
DAY_FIRST = re.compile(rf"{_DATE}(?:[ T,]+{_TIME})?")


class Spelling(Record):
    """The options of `ingest` and `look` for texts that mean numbers, dates or booleans; recorded with a span."""

    decimal: Literal[".", ","] = Field(default=".", description="decimal sign of numbers")
    dayfirst: bool = Field(default=False, description="dates such as 20.11.2026 begin with the day")
    true: tuple[str, ...] = Field(default=(), description="further words for true, in lower case")
    false: tuple[str, ...] = Field(default=(), description="further words for false, in lower case")

    @property
    def options(self) -> tuple[str, ...]:
        """The words of a command line that give this spelling; none for the default."""
        words = ["--decimal", ","] if self.decimal == "," else []
        words += ["--dayfirst"] if self.dayfirst else []
        for option, said in (("--true", self.true), ("--false", self.false)):
            words += [option, ",".join(said)] if said else []
        return tuple(words)

    def typed(self, text: str) -> tuple[str | None, bool | float | None]:
        """Return the kind of a text as `kind_of_text` does, and its value; None: as without options."""
        stripped = text.strip()
        if (self.true or self.false) and (word := stripped.casefold()) in (*self.true, *self.false):
            return "bool", word in self.true
        if self.decimal == ",":
            if COMMA_NUMBER.fullmatch(stripped):
                kind = "float64" if "," in stripped else kind_of_digits(_GROUPS.sub("", stripped))
                return kind, number_with_comma(stripped)
            if NUMBER.fullmatch(stripped):  # 12.5: another sign than the one that was promised
                return "string", None
        return kind_of_text(text), None


PLAIN = Spelling()


def parse_spelling(decimal: str, dayfirst: bool, true: str | None, false: str | None) -> Spelling:
    """Return the spelling of a command line. Raises ConfigError: an option is not understood."""
    if decimal not in (".", ","):
        raise ConfigError(f"--decimal {decimal!r}: give . or ,")
    words = {"--true": _words("--true", true), "--false": _words("--false", false)}
    if both := {*words["--true"]} & {*words["--false"]}:
        raise ConfigError(f"--true and --false: {min(both)!r} is in both; give it to one of them")
    return Spelling(decimal=decimal, dayfirst=dayfirst, true=words["--true"], false=words["--false"])


def _words(option: str, text: str | None) -> tuple[str, ...]:
    words = () if text is None else tuple(word.strip().casefold() for word in text.split(","))
    for word in words:
        if not word or kind_of_text(word) != "string":
            raise ConfigError(f"{option} {text!r}: give words with commas between them, as in ja,oui; {word!r} is none")
    return words


def number_with_comma(text: str) -> float:
    """Return the number of a text that COMMA_NUMBER matches."""
    return float(_GROUPS.sub("", text).replace(",", "."))


def parse_day_first(text: str) -> dt.datetime:
    """Return the time of a text that DAY_FIRST matches; of a year with two digits, the one in this century.

    Raises:
        ValueError: the text is no such date, or not on the calendar.
    """
    found = DAY_FIRST.fullmatch(text)
    if not found:
        raise ValueError(text)
    day, _, month, year, *time = found.groups(default="0")
    hour, minute, second = map(int, time)
    return dt.datetime(int(year) + (2000 if len(year) == 2 else 0), int(month), int(day), hour, minute, second)


def day_comes_first(texts: Sequence[str]) -> bool | None:
    """Return True if dates that DAY_FIRST matches begin with the day, False if with the month; None: either fits."""
    parts = [(int(found[1]), int(found[3])) for text in texts if (found := DAY_FIRST.fullmatch(text.strip()))]
    if any(first > 12 for first, _ in parts):
        return True
    return False if any(second > 12 for _, second in parts) else None
