"""Facts of a source: its columns, the shapes of their values, and likely problems, each with the way out."""

import enum
from typing import Literal

from pydantic import Field

from tasks.contracts.profiles import Shared
from tasks.foundation.records import Record


class Shape(enum.StrEnum):
    """The meaning of a value by its spelling, independent of its type."""

    number = "number"
    boolean = "boolean"
    time = "time"
    text = "text"
    nested = "nested"
    decimal_comma = "decimal comma"
    day_first = "day-first date"
    month_first = "month-first date"
    short_year = "date with a year of two digits"
    word = "yes or no"  # a word for true or false in some language


class ColumnFacts(Record):
    """One column of a source. Rows are counted in the whole source; all else is of a sample of its rows."""

    name: str = Field(description="column of the source; `a.b` is the part b of a nested column a")
    type: Literal["text", "number", "boolean"] = Field(description="type that the column has in a span")
    suggests: Shape | None = Field(description="meaning that nearly all values suggest, if it is not the type")
    nulls: int = Field(description="rows without a value")
    distinct: int = Field(description="distinct values in the sample")
    lengths: tuple[int, int, int] | None = Field(
        description="characters of the texts: fewest and most of all rows, and between them the median of the sample"
    )
    languages: tuple[Shared, ...] = Field(description="languages of the texts, commonest first, by shares of the texts")
    common: tuple[Shared, ...] = Field(description="commonest values, cut to 60 characters, by shares of the values")
    ids: bool = Field(description="true: the values look like ids: one word each, with digits")
    odd: str | None = Field(description="first value that differs from nearly all others, with its row; null: none")
    role: str | None = Field(default=None, description="name in --map, or `time`; null: a further column")


class Problem(Record):
    """A likely mistake, and the way out."""

    kind: Literal[
        "missing",
        "ids",
        "same",
        "swapped",
        "decimal",
        "date",
        "words",
        "odd",
        "repeated",
        "empty",
        "unread",
        "constant",
        "markup",
        "misread",
        "placeholder",
        "scientific",
        "status",
        "join",
        "unreadable",
        "lists",
        "lookup",
        "few",
    ] = Field(description="subject of the problem")
    column: str | None = Field(description="column of the source; null: none fits")
    text: str = Field(description="the problem and the way out, for people")


class SourceFacts(Record):
    """`millrace look`: a source, read once."""

    source: str = Field(description="file or folder")
    export: str | None = Field(default=None, description="kind of export, by its columns; null: none that is known")
    feed: bool = Field(description="true: an item feed; false: rows of queries")
    format: str = Field(description="jsonl, csv, parquet or xml")
    delimiter: str | None = Field(description="delimiter of the first CSV file, by name; null: other format")
    files: int = Field(description="files that were read")
    rows: int = Field(description="rows of all files that --only chooses")
    left_out: int = Field(default=0, description="rows that --only leaves out")
    unreadable: int = Field(default=0, description="lines that can't be read as rows")
    sampled: int = Field(description="rows in the sample")
    first: str | None = Field(description="earliest time in the sample; null: no time was found")
    last: str | None = Field(description="latest time in the sample; null: no time was found")
    columns: tuple[ColumnFacts, ...] = Field(description="columns in the order of the source")
    mapping: dict[str, str] = Field(description="name in --map -> column")
    time_column: str | None = Field(description="column with the time; null: none is likely")
    span: str = Field(description="length of a span, by the rows in each")
    problems: tuple[Problem, ...] = Field(description="likely mistakes in the mapping and in the columns")
    remarks: tuple[str, ...] = Field(default=(), description="remarks on the export, for people")
    command: str = Field(description="command that ingests the source; COLUMN stands for a column to choose")


_TRUE = "ja yes oui si sí sì sim tak evet igen wahr vrai vero verdadero はい y j"
_FALSE = "nein no non não nie hayır nem falsch faux falso いいえ n nee"
TRUE_WORDS = frozenset(_TRUE.split())
FALSE_WORDS = frozenset(_FALSE.split())
_BRACKETED = ("(not set)", "(not provided)", "(other)", "(none)", "(blank)")
PLACEHOLDERS = frozenset([*_BRACKETED, "null", "undefined", "nan", "n/a", "none"])


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
