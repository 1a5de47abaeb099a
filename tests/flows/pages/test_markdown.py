import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.pages.markdown import (
    FEW_LETTERS,
    MOST_LETTERS,
    bold,
    code,
    commands,
    counted,
    image,
    link,
    table,
    text,
    wrapped,
)
from tests.support.pages import blocks, tables

# What ends a cell, opens markup or is HTML; and any other letters that can be seen.
WORDS = st.text(st.one_of(st.sampled_from("|\\`*_[]<>&~#!()\n\"' -+=:"), st.characters(exclude_categories=("C", "Z"))))


def written(words: str) -> str:
    return "".join(words.split())


@given(WORDS)
def test_any_words_are_shown_as_they_are_and_stay_in_their_cell(words: str):
    ((_, (cell, end)),) = tables("\n".join(table(("first", "second"), [(words, "end")])))
    assert (written(cell), end) == (written(words), "end")


@given(WORDS)
def test_any_words_can_be_code(words: str):
    ((_, (cell, end)),) = tables("\n".join(table(("first", "second"), [(code(words), "end")])))
    assert (written(cell), end) == (written(words), "end")


def test_markup_is_left_as_it_is():
    assert table(("a", ">b"), [(bold("x"), code("y"))]) == ["| a | b |", "| --- | ---: |", "| **x** | `y` |", ""]


def test_long_words_take_several_lines_and_no_more_than_can_be_read():
    lines = wrapped("word " * 40).split("<br>")
    assert len(lines) == 3
    assert all(len(line) <= MOST_LETTERS for line in lines)
    endless = wrapped("word " * 4000).split("<br>")
    assert len(endless) == 12
    assert endless[-1].endswith(" …")


def test_a_row_of_another_width_is_refused():
    with pytest.raises(ValueError, match="a row of 1 cells in a table of 2 columns"):
        table(("a", "b"), [("x",)])


def test_a_link_ends_where_it_should():
    assert link("a [b]", "http://h/x y)z") == r"[a \[b\]](http://h/x%20y%29z)"


def test_a_picture_lies_in_the_page():
    assert image("Losses", b"<svg/>") == "![Losses](data:image/svg+xml;base64,PHN2Zy8+)"


def test_commands_are_a_block_to_be_copied():
    assert blocks("\n".join(commands("a | b", "c"))) == ["a | b\nc\n"]


@pytest.mark.parametrize(("number", "said"), [(0, "0 shards"), (1, "1 shard"), (2000, "2,000 shards")])
def test_a_number_of_things(number: int, said: str):
    assert counted(number, "shard") == said


def test_words_of_several_lines_are_one():
    assert text("a\n\n# b\tc ") == "a # b c"


def test_a_cell_beside_many_others_is_narrower():
    words = "word " * 30
    for columns, letters in ((3, MOST_LETTERS), (4, FEW_LETTERS)):
        row = table([""] * columns, [[words, *[""] * (columns - 1)]])[2]
        lines = row.strip("| ").split("<br>")
        assert letters - 5 < max(map(len, lines)) <= letters
