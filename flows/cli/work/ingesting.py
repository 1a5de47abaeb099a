"""`millrace ingest`: what a person says about a source, and what came of it."""

import datetime as dt
from pathlib import Path

from flows.cli.terminal.console import say, show_table
from tasks.data.csv_form import parse_delimiter
from tasks.data.ingest import IngestOptions, IngestSummary
from tasks.data.known_spans import Known
from tasks.data.new_versions import IngestedSpan
from tasks.foundation.errors import ConfigError


def options(
    replace: bool,
    merge: bool,
    delimiter: str | None,
    not_before: str | None,
    not_after: str | None,
    set_aside: Path | None,
) -> IngestOptions:
    """Return the options of the command line. Raises ConfigError: two exclude each other, or one is not understood."""
    if replace and merge:
        raise ConfigError("--replace and --merge: give one of them; --merge keeps the rows that the source lacks")
    return IngestOptions(
        known=Known.replace if replace else Known.merge if merge else None,
        not_before=_day("--not-before", not_before),
        not_after=_day("--not-after", not_after),
        delimiter=None if delimiter is None else parse_delimiter(delimiter),
        set_aside=set_aside,
    )


def show(output: IngestSummary) -> None:
    """Print the output for people."""
    rows = ([s.name, f"v{s.version}", f"{s.rows:,}", _what(s)] for s in output.spans)
    show_table(["span", "version", ">rows", ""], rows)
    say(f"{output.rows:,} rows in {len(output.spans)} spans, from {output.files} file(s)")
    for note in output.notes:
        say(f"note: {note}")


def _what(span: IngestedSpan) -> str:
    if not span.new:
        return "as before"
    if span.difference is None:
        return "new"
    before = span.difference
    return f"new: {before.changed:,} changed, {before.added:,} added, {before.before + before.added - span.rows:,} gone"


def _day(option: str, text: str | None) -> dt.date | None:
    try:
        return None if text is None else dt.date.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: write a day as 2026-11-20") from error
