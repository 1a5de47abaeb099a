import datetime as dt

import pytest

from tasks.data.files.spelling import PLAIN, Spelling, day_comes_first, parse_day_first, parse_spelling
from tasks.foundation.errors import ConfigError

COMMA = Spelling(decimal=",")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("43,49", 43.49),
        ("-0,5", -0.5),
        ("1.234,50", 1234.5),
        ("1\xa0234 567,8", 1234567.8),
    ],
)
def test_a_decimal_comma_makes_a_number(text: str, value: float) -> None:
    assert COMMA.typed(text) == ("float64", value)


def test_whole_numbers_with_a_decimal_comma_are_codes_beyond_float64() -> None:
    assert COMMA.typed("1.234") == ("whole", 1234.0)
    assert COMMA.typed(" -7 ") == ("whole", -7.0)
    assert COMMA.typed("9007199254740993") == ("code", 2.0**53)


@pytest.mark.parametrize("text", ["12.5", "01,5", "1,234.50", "1.23,4", "a", "1,", "12.34.567"])
def test_with_a_decimal_comma_other_spellings_are_texts(text: str) -> None:
    assert COMMA.typed(text) == ("string", None)


def test_without_options_texts_are_typed_as_ever() -> None:
    found = [PLAIN.typed(text) for text in ("43,49", "43.49", "true", "NaN", "ja")]
    assert found == [("string", None), ("float64", None), ("bool", None), (None, None), ("string", None)]


def test_words_are_booleans_in_any_case() -> None:
    spelling = parse_spelling(".", False, "ja, Oui", "nein,non")
    found = [spelling.typed(text) for text in ("JA", "oui ", "Nein", "true")]
    assert found == [("bool", True), ("bool", True), ("bool", False), ("bool", None)]


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("20.11.2026", dt.datetime(2026, 11, 20)),
        ("3/4/26", dt.datetime(2026, 4, 3)),
        ("20.11.2026 8:30", dt.datetime(2026, 11, 20, 8, 30)),
        ("20-11-2026, 08:30:15", dt.datetime(2026, 11, 20, 8, 30, 15)),
    ],
)
def test_a_date_begins_with_the_day(text: str, moment: dt.datetime) -> None:
    assert parse_day_first(text) == moment


@pytest.mark.parametrize("text", ["11.20.2026", "2026-11-20", "20.11/2026"])
def test_other_dates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"month|\.|-"):
        parse_day_first(text)


def test_parts_above_twelve_tell_day_from_month() -> None:
    assert day_comes_first(["1.2.2026", "20.11.2026"]) is True
    assert day_comes_first(["1/2/2026", "11/20/2026"]) is False
    assert day_comes_first(["1/2/2026"]) is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((";", False, None, None), "--decimal ';': give . or ,"),
        ((".", False, "ja,,", None), "--true 'ja,,'"),
        ((".", False, "1", None), "'1' is none"),
        ((".", False, "ja", "nein,Ja"), "'ja' is in both"),
    ],
)
def test_bad_options_are_named(arguments: tuple[str, bool, str | None, str | None], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_spelling(*arguments)


def test_the_options_of_a_spelling_are_those_that_give_it() -> None:
    spelling = parse_spelling(",", True, "ja,oui", None)
    assert spelling.options == ("--decimal", ",", "--dayfirst", "--true", "ja,oui")
    assert PLAIN.options == ()
