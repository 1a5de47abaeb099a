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
