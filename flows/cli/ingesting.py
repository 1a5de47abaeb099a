"""`millrace look`, `ingest` and `skip`: look at a source, add its spans to the workspace, or skip one."""

import datetime as dt
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Annotated

import typer

import tasks.data.adopt
import tasks.data.ingest
import tasks.data.look
from flows.cli.terminal.command import command
from flows.cli.terminal.options import DETECTED, Reading, RunOptions, spans, workspace_words
from flows.cli.terminal.progress_bars import display
from flows.presentation.model import Command, Parts, table
from infra.store.base import Store
from infra.store.factory import require_fit
from tasks.contracts.profiles import Shared
from tasks.contracts.spans import SpanKind, kind_of
from tasks.data.adopt import AdoptedSpan
from tasks.data.canonical import ITEMS, ROWS
from tasks.data.files.facts import ColumnFacts, SourceFacts
from tasks.data.files.sources import source_path
from tasks.data.files.times import believed, parse_time
from tasks.data.ingest import IngestOptions, IngestSummary
from tasks.data.likely_mistakes import unread_label
from tasks.data.look import LookOptions, with_problems
from tasks.data.mapping import parse_map
from tasks.data.new_versions import IngestedSpan, Known
from tasks.data.rows import SPAN_KIND
from tasks.data.span_versions import list_spans
from tasks.foundation.errors import ConfigError
from tasks.foundation.languages import UNSURE
from tasks.foundation.nouns import plural
from tasks.planning import decisions
from tasks.planning.decisions import Skip
from tasks.runs.audit import audited

_MOST_SHOWN = 3  # values, and languages
_SHOWN_CHARS = 24  # shown of a value


def look_page(output: SourceFacts) -> Parts:
    """Yield the columns, the problems, and the command to copy."""
    form = f"{output.format}, {output.delimiter} between fields" if output.delimiter else output.format
    sample = f"; distinct values and shares of a sample of {output.sampled:,}" * (output.sampled < output.rows)
    times = f", {output.first[:10]} to {output.last[:10]}" if output.first and output.last else ""
    name = f", {output.export}" if output.export else ""
    yield f"{output.source}{name}: {plural(output.rows, 'row')}{times}, {form}{sample}"
    if output.left_out:
        yield f"{plural(output.left_out, 'further row')} left out"
    yield ""
    filled = [c for c in output.columns if c.common or c.role]
    rows = ([c.name, c.role or "", _type(c), f"{c.nulls:,}", f"{c.distinct:,}", _values(c)] for c in filled)
    yield table("", ["column", "role", "~type", ">nulls", ">distinct", "~values"], rows)
    if empty := [c.name for c in output.columns if c not in filled]:
        yield f"without any value: {', '.join(empty)}"
    yield ""
    yield from (f"check: {problem.text}" for problem in output.problems)
    yield from (f"note: {remark}" for remark in output.remarks)
    yield ""
    yield Command("To ingest it:", (output.command,))


@command(look_page, new=True)
def look(
    options: RunOptions,
    file: Annotated[
        PurePath,
        typer.Argument(
            parser=source_path,
            metavar="FILE",
            help="A file, a folder of files, or s3://bucket/prefix; gzip, bzip2, xz and zstd are recognised.",
        ),
    ],
    items: Annotated[bool, typer.Option("--items", help="The source is an item feed, not rows with queries.")] = False,
    columns: Annotated[str | None, typer.Option("--map", help="Check these columns, as in query=q,item=title.")] = None,
    time_column: Annotated[str | None, typer.Option(help="Column with the time; default: the likely one.")] = None,
    span: Annotated[
        SpanKind | None, typer.Option(help="Length of a span; default: the workspace's, else by the rows in each.")
    ] = None,
    reading: Reading = DETECTED,
) -> SourceFacts:
    """Read a source, and show its columns, their likely roles, likely mistakes, and the command that ingests it."""
    layout = ITEMS if items else ROWS
    known = list_spans(options.store)
    asked = LookOptions(
        form=reading.form,
        csv=reading.csv,
        spelling=reading.spelling,
        shaping=reading.shaping,
        mapping=None if columns is None else parse_map(columns, layout),
        time_column=time_column,
        span=span or (kind_of(known[0].name) if known else None),
    )
    with display() as listener:
        facts = tasks.data.look.look(file, layout, asked, listener.progress, workspace_words(options.store))
    label = next((each for each in facts.columns if each.role == "label"), None)
    problem = unread_label(options.config(), label) if label else None
    return with_problems(facts, [problem] if problem else [])


def _type(column: ColumnFacts) -> str:
    parts = list(_parts(column))
    return ", ".join([f"{column.type} ({column.suggests})" if column.suggests else column.type, *parts])


def _parts(column: ColumnFacts) -> Iterator[str]:
    if column.type == "text" and column.ids:
        yield "looks like ids"
    elif column.type == "text" and column.lengths and not column.suggests:
        fewest, median, most = column.lengths
        yield f"{fewest} to {most} characters, median {median}" if fewest < most else f"{fewest} characters each"
    if [each.value for each in column.languages] not in ([], [UNSURE]):
        yield " ".join(map(_shared, column.languages[:_MOST_SHOWN]))


def _values(column: ColumnFacts) -> str:
    shown = [each.value for each in column.common[:_MOST_SHOWN]]
    return " | ".join(value if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]}…" for value in shown)


def _shared(each: Shared) -> str:
    return f"{each.value} {each.share:.0%}"


_MOST_COLUMNS = 30  # shown


def ingest_page(output: IngestSummary) -> Parts:
    """Yield the spans, the columns and likely mistakes."""
    rows = ([s.name, f"v{s.version}", f"{s.rows:,}", _what(s)] for s in output.spans)
    yield table("", ["span", "version", ">rows", ""], rows)
    yield f"{plural(output.rows, 'row')} in {plural(len(output.spans), 'span')}, from {plural(output.files, 'file')}"
    first = sorted(output.columns, key=lambda each: each.role is None)[:_MOST_COLUMNS]
    more = len(output.columns) - len(first)
    shown = first if more else output.columns  # in the order of the source
    yield f"columns: {', '.join(map(_column, shown))}{f' and {more:,} more' if more else ''}"
    yield from (f"check: {problem.text}" for problem in output.problems)
    if not output.problems:
        yield "check: no likely mistake is seen in a sample of the rows; millrace look FILE shows more"
    yield from (f"note: {note}" for note in output.notes)


@command(ingest_page, new=True)
def ingest(
    store: Store,
    span: Annotated[SpanKind, typer.Option(help="Length of a span.")],
    columns: Annotated[
        str, typer.Option("--map", help="Columns, as in query=q,item=title; of items, as in id=sku,text=title.")
    ],
    time_column: Annotated[
        str | None, typer.Option(help="Column with the time: ISO 8601, or seconds since 1970.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="Time of all records, if no column has it, as 2026-11-20T08:30:00Z.")
    ] = None,
    source: Annotated[
        PurePath | None,
        typer.Option(
            parser=source_path,
            metavar="PATH",
            help="Rows: a file, a folder, or s3://bucket/prefix; gzip, bzip2, xz and zstd are recognised.",
        ),
    ] = None,
    items: Annotated[
        PurePath | None,
        typer.Option(
            parser=source_path, metavar="PATH", help="Item feed instead of rows: new, changed and deleted items."
        ),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(help="Replace changed spans; the source must contain all their rows.", show_default=False),
    ] = False,
    merge: Annotated[
        bool, typer.Option(help="Merge into existing spans; on conflict the new row wins.", show_default=False)
    ] = False,
    not_before: Annotated[
        str | None, typer.Option(help="First day of the data, as 2015-01-01. Earlier rows are errors.")
    ] = None,
    not_after: Annotated[
        str | None, typer.Option(help="Last day of the data; default: tomorrow. Later rows are errors.")
    ] = None,
    set_aside: Annotated[
        Path | None, typer.Option(help="Write invalid rows and unreadable lines to this new file instead of failing.")
    ] = None,
    reading: Reading = DETECTED,
) -> IngestSummary:
    """Cut a source of rows, or an item feed, into spans and add them to the workspace.

    The same rows again change nothing. If the workspace has a span with other rows, say --replace or --merge.
    """
    require_fit(store)
    path = source or items
    if path is None or (source and items):
        raise ConfigError(
            "name one input: --source FILE for rows of queries and items, or --items FILE for items alone"
        )
    layout = ITEMS if items else ROWS
    mapping = parse_map(columns, layout)
    if (time_column is None) == (at is None):
        raise ConfigError(
            "give --time-column COLUMN, or --at TIME if no record has a time, as in most feeds and sets of judgements"
        )
    options = _options(replace, merge, reading, not_before, not_after, set_aside)
    time = time_column or _time("--at", at or "")
    with display() as listener:
        return tasks.data.ingest.ingest(
            store, path, reading.form, time, span, mapping, layout, listener.progress, options
        )


def adopt_page(output: AdoptedSpan) -> Parts:
    """Yield the rows and the columns."""
    of_span = output.kind == SPAN_KIND
    rows = plural(output.rows, "row") if of_span else plural(output.rows, "record of items", "records of items")
    yield f"{output.name} v{output.version}: {rows} in {plural(output.files, 'file')}, as they lie"
    labels = f"; rows with a label: {output.labels:,}" if of_span else ""
    yield f"further columns: {', '.join(output.columns) or 'none'}{labels}"
    if output.ids_alone:
        yield "note: rows name their items by id alone: validate takes each text from the item feed"


@command(adopt_page, new=True)
def adopt(
    store: Store,
    place: Annotated[
        str,
        typer.Argument(
            metavar="PLACE",
            help="Folder of a span's files in the workspace: spans/2026-W47/v1; of an item feed: items/2026-11/v1.",
        ),
    ],
) -> AdoptedSpan:
    """Check a span or an item feed that another engine wrote there as Parquet, and make it complete. Copies nothing."""
    return tasks.data.adopt.adopt(store, place)


def skip_page(made: Skip) -> Parts:
    """Yield the recorded skip, and how it ends."""
    yield f"{made.span.name} v{made.span.version} is skipped: {made.reason}"
    yield "A corrected version of it is not."


@command(skip_page)
def skip(
    options: RunOptions,
    span: Annotated[
        str, typer.Argument(autocompletion=spans, help="For example 2022-Q4; its newest version is skipped.")
    ],
    reason: Annotated[str, typer.Option(help="Reason, shown with the span later.")],
) -> Skip:
    """Leave out a span that the lineage has not trained, as one with too few rows. The next run takes the one after."""
    config = options.config()
    with audited(options.store, "skip", lineage=config.lineage, span=span, reason=reason):
        return decisions.skip(options.store, config, span, reason)


def _options(
    replace: bool,
    merge: bool,
    reading: Reading,
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
        csv=reading.csv,
        spelling=reading.spelling,
        shaping=reading.shaping,
        set_aside=set_aside,
    )


def _column(column: ColumnFacts) -> str:
    """Return a column with its role and type, and the number of rows without a value."""
    role = f"{column.role}, " if column.role else ""
    empty = f", {column.nulls:,} empty" if column.nulls else ""
    return f"{column.name} ({role}{column.type}{empty})"


def _what(span: IngestedSpan) -> str:
    if not span.new:
        return "as before, and its damaged files made again" if span.mended else "as before"
    if span.difference is None:
        return "new"
    before = span.difference
    return f"new: {before.changed:,} changed, {before.added:,} added, {before.before + before.added - span.rows:,} gone"


def _time(option: str, text: str) -> dt.datetime:
    try:
        moment = parse_time(text)
    except (ValueError, OverflowError, TypeError) as error:
        raise ConfigError(f"{option} {text!r}: write a time as 2026-11-20T08:30:00Z") from error
    if problem := believed(dt.datetime.now(dt.UTC), None, None).problem(moment):
        raise ConfigError(f"{option} {text!r}: {problem.partition(';')[0]}")
    return moment


def _day(option: str, text: str | None) -> dt.date | None:
    try:
        return None if text is None else dt.date.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(f"{option} {text!r}: write a day as 2026-11-20") from error
