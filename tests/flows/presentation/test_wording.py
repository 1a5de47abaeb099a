import unicodedata

import pytest

from flows.presentation.wording import dollars, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b]0;PWNED\x07\x1b[2J", r"\x1b]0;PWNED\x07\x1b[2J"),
        ("a\x9b31mb", r"a\x9b31mb"),
        ("0 rows\r9 rows", r"0 rows\r9 rows"),
        ("\u202egnp.exe", r"\u202egnp.exe"),
        ("\u2067a\u2069", r"\u2067a\u2069"),
        ("a\u2028b", r"a\u2028b"),
        ("\ud83d", r"\ud83d"),
        ("two\nlines\tand Crème, 赤い靴, كتاب, \N{WOMAN}\u200d\N{PERSONAL COMPUTER}", None),
    ],
)
def test_what_would_move_the_cursor_or_the_order_of_letters_is_shown(text: str, shown: str | None) -> None:
    assert visible(text) == (text if shown is None else shown)


def test_no_control_character_but_tabs_and_ends_of_lines_is_left() -> None:
    left = [letter for letter in map(chr, range(0x110000)) if visible(letter) == letter]
    assert {letter for letter in left if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp")} == {"\t", "\n"}
    turning = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not [letter for letter in left if unicodedata.bidirectional(letter) in turning]


@pytest.mark.parametrize(
    ("value", "shown"), [(None, "–"), (0.0, "$0.00"), (1234.5, "$1,234.50"), (0.067, "$0.067"), (3.26e-5, "$0.000033")]
)
def test_a_small_cost_is_neither_nothing_nor_a_power_of_ten(value: float | None, shown: str) -> None:
    assert dollars(value) == shown
