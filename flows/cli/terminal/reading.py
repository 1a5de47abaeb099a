"""The options of `look` and `ingest` about format, spelling and rows of a source."""

from pathlib import PurePath
from typing import Annotated, NamedTuple

import typer

from tasks.data.files.csv_form import Quote, parse_delimiter
from tasks.data.files.csv_rows import CsvOptions
from tasks.data.files.formats import Format
from tasks.data.files.nested import parse_explode
from tasks.data.files.places import source_path
from tasks.data.files.shaping import Lookup, Shaping, parse_only
from tasks.data.files.spelling import Spelling, parse_spelling
from tasks.foundation.errors import ConfigError


class Reading(NamedTuple):
    """The options as they are given, each with its help."""

    form: Annotated[
        Format | None, typer.Option("--format", help="Format of the records; default: from the file name.")
    ] = None
    delimiter: Annotated[
        str | None, typer.Option(help="Delimiter of a CSV: comma, semicolon, tab or pipe; default: detected.")
    ] = None
    quote: Annotated[
        Quote | None,
        typer.Option(help='Quotes of a CSV: double (""), backslash (\\"), none (plain); default: detected.'),
    ] = None
    decimal: Annotated[str, typer.Option(help="Decimal sign of numbers in text columns, e.g. in CSV: . or ,")] = "."
    dayfirst: Annotated[bool, typer.Option("--dayfirst", help="Dates begin with the day, e.g. 20.11.2026.")] = False
    true: Annotated[str | None, typer.Option("--true", help="Further words for true, as ja,oui.")] = None
    false: Annotated[str | None, typer.Option("--false", help="More words for false, e.g. nein,non.")] = None
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Rows to read: COLUMN (has a value), or COLUMN=VALUE,VALUE. May be repeated."),
    ] = None
    lookup: Annotated[
        PurePath | None,
        typer.Option(
            "--lookup", parser=source_path, metavar="PATH", help="Another file with columns of the rows, found by --by."
        ),
    ] = None
    by: Annotated[str | None, typer.Option("--by", help="Column that the rows and the file of --lookup share.")] = None
    explode: Annotated[
        str | None, typer.Option(help="Columns with lists of ids, a row for each id: clicked, or clicked,shown.")
    ] = None

    @property
    def shaping(self) -> Shaping:
        """The rows of a record. Raises ConfigError: an option is not understood, or one of two is missing."""
        if (self.lookup is None) != (self.by is None):
            raise ConfigError("--lookup FILE and --by COLUMN belong together: give both, or none")
        lookup = None if self.lookup is None or self.by is None else Lookup(self.lookup, self.by)
        return Shaping(parse_explode(self.explode), lookup, parse_only(self.only or ()))

    @property
    def csv(self) -> CsvOptions:
        """The delimiter and the quotes. Raises ConfigError: the delimiter is not understood."""
        return CsvOptions(None if self.delimiter is None else parse_delimiter(self.delimiter), self.quote)

    @property
    def spelling(self) -> Spelling:
        """The spelling of numbers, dates and booleans. Raises ConfigError: an option is not understood."""
        return parse_spelling(self.decimal, self.dayfirst, self.true, self.false)


DETECTED = Reading()  # no option is given
