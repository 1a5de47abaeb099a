"""The spelling of numbers, dates and booleans in a source, as a European Excel exports them: 43,49, 20.11.2026, ja."""

import datetime as dt
import re
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from tasks.data.files.values import NUMBER, kind_of_digits, kind_of_text
from tasks.foundation.errors import ConfigError
from tasks.foundation.records import Record

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
