import pytest

from tasks.data.files.csv_rows import CsvForm, Quote, find_form, parse_delimiter
from tasks.data.mapping import looks_like_a_row
from tasks.foundation.errors import ConfigError


@pytest.mark.parametrize(
    ("start", "delimiter"),
    [
        ("a,b\n1,2\n", ","),
        ("a;b\n1,5;2,5\n3,5;4,5\n", ";"),  # each row has commas, the header has none
        ("a\tb\n1\t2\n", "\t"),
        ("a|b\n1|2\n", "|"),
        ('a;b\n"x;\n,y";2\n', ";"),  # within quotes nothing separates
        ("a,b;c\n1,2\n3,4;5\n", ","),  # only the comma gives each row as many fields
        ("a,b\n1,2\n3\n", ","),  # a damaged row, which reading names
        ("a;b\n1;2\n3\n", ";"),
        ("text\nhello\n", ","),
        ('a;b\n1;2\n3;"cut', ";"),
    ],
)
def test_the_delimiter_is_what_gives_each_row_as_many_fields(start: str, delimiter: str) -> None:
    found = find_form(start.splitlines(keepends=True), whole=False)
    assert found == CsvForm(delimiter, Quote.double)


def test_two_that_fit_are_a_question() -> None:
    assert find_form(["a,b;c\n", "1,2;3\n"], whole=True) is None


ROWS = "at\tq\tt\n2026-01-01\tlamp\tLamp\n"


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ('at,q\n1,"a ""b"""\n', (",", "double")),
        ('at,q\n1,"24\\" screen, wide"\n', (",", "backslash")),
        ('at\tq\n1\t"Heavy" pan\n', ("\t", "none")),
        ('at\tq\tt\n1\t"kettle\tx\n2\tlamp\tx\n3\t24"\tx\n', ("\t", "none")),  # a pair of quotes eats rows
        ('at\tq\tt\n1\t"kettle\tx\n2\tscreen 24"\tx\n', ("\t", "none")),
        ('at,q,t\n1,"a text\nof lines, and more",x\n', (",", "double")),
        ('at,q,t\n1,"a, text\nof, two lines, and",x\n', (",", "double")),  # as many commas as a row, but no time
        ('at,q\n1,a\n2,"a, b\n3,c\n', (",", "double")),  # nothing fits: reading names the row
    ],
)
def test_the_meaning_of_quotes_is_what_makes_rows_of_all_lines(text: str, form: tuple[str, str]) -> None:
    assert find_form(text.splitlines(keepends=True), whole=True) == form


@pytest.mark.parametrize(
    ("header", "row"),
    [
        (["id", "text", "title 2"], False),
        (["r1", "5", "Lamp"], True),
        (["r1", "2026-01-01", "Lamp"], True),
        (["good", "good"], True),
        (["id", ""], True),
        (["id", "a review of more than sixty-four characters is not the name of a column"], True),
    ],
)
def test_a_header_holds_names(header: list[str], row: bool) -> None:
    assert looks_like_a_row(header) is row


def test_a_delimiter_has_a_name_or_is_one_character() -> None:
    assert [parse_delimiter(text) for text in ("tab", ";", "comma", "^")] == ["\t", ";", ",", "^"]
    for text in ("", "tabs", "\n", '"'):
        with pytest.raises(ConfigError, match="--delimiter"):
            parse_delimiter(text)
