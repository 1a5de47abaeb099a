"""`millrace look`: a first look at a source, before anything is ingested."""

from collections.abc import Iterator
from pathlib import PurePath
from typing import Annotated

import typer

import tasks.data.look
from flows.cli.terminal.command import command
from flows.cli.terminal.console import say, show_table
from flows.cli.terminal.options import DETECTED, Reading, RunOptions, workspace_words
from flows.cli.terminal.progress_bars import display
from flows.presentation.wording import plural
from tasks.contracts.profiles import Shared
from tasks.contracts.spans import SpanKind, kind_of
from tasks.data.canonical import ITEMS, ROWS
from tasks.data.files.facts import ColumnFacts, SourceFacts
from tasks.data.files.places import source_path
from tasks.data.label_columns import unread_label
from tasks.data.look import LookOptions, with_problems
from tasks.data.mapping import parse_map
from tasks.data.span_versions import list_spans
from tasks.foundation.languages import UNSURE

_MOST_SHOWN = 3  # values, and languages
_SHOWN_CHARS = 24  # shown of a value


def show_facts(output: SourceFacts) -> None:
    """Print the columns, the problems, and the command to copy."""
    form = f"{output.format}, {output.delimiter} between fields" if output.delimiter else output.format
    sample = f"; distinct values and shares of a sample of {output.sampled:,}" * (output.sampled < output.rows)
    times = f", {output.first[:10]} to {output.last[:10]}" if output.first and output.last else ""
    name = f", {output.export}" if output.export else ""
    say(f"{output.source}{name}: {output.rows:,} rows{times}, {form}{sample}")
    say(*([f"{plural(output.left_out, 'further row')} left out"] if output.left_out else []), "")
    filled = [c for c in output.columns if c.common or c.role]
    rows = ([c.name, c.role or "", _type(c), f"{c.nulls:,}", f"{c.distinct:,}", _values(c)] for c in filled)
    show_table(["column", "role", "~type", ">nulls", ">distinct", "~values"], rows)
    empty = [c.name for c in output.columns if c not in filled]
    say(*([f"without any value: {', '.join(empty)}"] if empty else []), "")
    for problem in output.problems:
        say(f"check: {problem.text}")
    for remark in output.remarks:
        say(f"note: {remark}")
    say("", "To ingest it:", f"  {output.command}")


@command(show_facts, new=True)
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
