"""`millrace init`: from a log, and perhaps an item feed, to settings that fit them and the commands to type."""

import datetime as dt
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Annotated, NamedTuple, TypeVar

import typer
from pydantic import Field

import tasks.data.look
from configs.load import load_config
from flows.cli.terminal.command import command
from flows.cli.terminal.console import note
from flows.cli.terminal.options import DETECTED, Reading, workspace_words, write_all
from flows.cli.terminal.progress_bars import display
from flows.presentation.model import Command, Parts
from infra.store.base import Store
from infra.store.factory import require_fit
from tasks.contracts.spans import SpanKind, kind_of, last_over
from tasks.data.canonical import ITEMS, ROWS, Layout
from tasks.data.files.facts import SourceFacts
from tasks.data.files.names import pairs_written
from tasks.data.files.sources import source_path
from tasks.data.look import LookOptions
from tasks.data.mapping import check_map, parse_map
from tasks.data.pretrained import describe
from tasks.data.span_versions import list_spans
from tasks.first_hour.files import COMMANDS, SETTINGS, commands_text, existing_files, settings_text
from tasks.first_hour.labels import first_labels
from tasks.first_hour.settings import FirstData, first_settings, first_span, gates_in_words, to_yaml
from tasks.foundation.errors import ConfigError
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record
from tasks.preflight.encoder import check_encoder, pretrained_folder

T = TypeVar("T")


class ChosenSetting(Record):
    """A setting of the new file."""

    key: str = Field(description="key with dots")
    value: object = Field(description="value that differs from base.yaml")
    reason: str = Field(description="reason in words, as in the file")


class InitOutput(Record):
    """`millrace init`."""

    files: tuple[str, ...] = Field(description="files that were written")
    log: str = Field(description="rows, times and mapping of the log in words")
    feed: str | None = Field(description="the same of the item feed; null: none")
    settings: tuple[ChosenSetting, ...] = Field(description="settings in the order of the file")
    gates: tuple[str, ...] = Field(
        description="smallest loss that each critical gate sees, once the whole log is trained"
    )
    problems: tuple[str, ...] = Field(description="likely mistakes in the sources, each with the way out")
    commands: tuple[str, ...] = Field(description="commands up to the first release and a search, in their order")


class _Sources(NamedTuple):
    log: SourceFacts
    feed: SourceFacts | None
    span: SpanKind


def init_page(output: InitOutput) -> Parts:
    """Yield the sources, likely mistakes, and the commands that follow."""
    yield output.log
    if output.feed:
        yield output.feed
    yield from (f"check: {problem}" for problem in output.problems)
    count = f"{len(output.settings)} settings, each with its reason"
    yield f"wrote {SETTINGS} ({count}) and {COMMANDS} (all commands)"
    yield ""
    yield Command("Next:", output.commands)


@command(init_page, new=True)
def init(
    store: Store,
    file: Annotated[
        PurePath | None,
        typer.Argument(
            parser=source_path, metavar="FILE", help="The log: a file, a folder of files, or s3://bucket/prefix."
        ),
    ] = None,
    items: Annotated[
        PurePath | None,
        typer.Option(parser=source_path, metavar="PATH", help="Item feed with the items' texts."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option("--map", help="Columns of the log, as in query=q,item=title; default: the likely ones."),
    ] = None,
    time_column: Annotated[str | None, typer.Option(help="Column with the time; default: the likely one.")] = None,
    encoder: Annotated[
        str | None, typer.Option(help="Folder of a pretrained encoder; default: a small new one.")
    ] = None,
    span: Annotated[
        SpanKind | None,
        typer.Option(help="Length of a span, and so the schedule; default: the workspace's, else by rows."),
    ] = None,
    timezone: Annotated[str, typer.Option(help="Time zone of the schedule, as Europe/Berlin.")] = "UTC",
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace both files if they exist.", show_default=False)
    ] = False,
    reading: Reading = DETECTED,
) -> InitOutput:
    """Write settings that fit a log, and the commands to type, into this folder. In a terminal it asks first."""
    require_fit(store)
    folder = Path()
    if (there := existing_files(folder)) and not replace:
        raise ConfigError(
            f"{' and '.join(map(str, there))} exist{'s' * (len(there) == 1)} in this folder; nothing was written. Give "
            "--replace to replace them, or call init in another folder"
        )
    asks = sys.stdin.isatty()
    if file is None and not asks:
        raise ConfigError("name the log: millrace init FILE [--items FEED]")
    file = file or _ask("The log, a file of searches", "", _existing)
    if items is None and asks:
        items = _ask(
            "An item feed with the items' texts (Enter: none)", "", lambda text: _existing(text) if text else None
        )
    known = list_spans(store)
    options = LookOptions(
        form=reading.form,
        csv=reading.csv,
        spelling=reading.spelling,
        shaping=reading.shaping,
        mapping=parse_map(columns) if columns else None,
        time_column=time_column,
        span=span or (kind_of(known[0].name) if known else None),
    )
    sources = _look(store, file, items, options)
    if asks and columns is None:
        note(f"columns: {', '.join(each.name for each in sources.log.columns)}; time: {sources.log.time_column}")
        mapping = _ask("Columns of the log", _as_option(sources.log.mapping), parse_map)
        if mapping != sources.log.mapping:
            sources = _look(store, file, items, options.model_copy(update={"mapping": mapping}))
    if asks and encoder is None:
        encoder = _ask("Folder of a pretrained encoder (Enter: a small new one)", "", lambda text: text or None)
    if asks and span is None:
        chosen = _ask("Train each day, week, month, quarter or year", sources.span.value, _span)
        sources = sources._replace(span=chosen)
    return _written(store, folder, _data(sources, encoder, timezone))


def _ask(question: str, proposed: str, read: Callable[[str], T]) -> T:
    """Ask until the answer can be read."""
    while True:
        try:
            return read(typer.prompt(question, default=proposed, show_default=bool(proposed), err=True).strip())
        except ConfigError as error:
            note(str(error))


def _existing(text: str) -> PurePath:
    path = source_path(text)
    if not text or (isinstance(path, Path) and not path.exists()):
        raise ConfigError(f"there is no file {text!r}")
    return path


def _span(text: str) -> SpanKind:
    try:
        return SpanKind(text)
    except ValueError:
        raise ConfigError(f"{text!r} is none of {', '.join(SpanKind)}") from None


def _look(store: Store, file: PurePath, items: PurePath | None, options: LookOptions) -> _Sources:
    """Look at both sources. Raises ConfigError: a needed column or the feed of a log of ids is missing."""
    words = workspace_words(store)
    with display() as listener:
        log = tasks.data.look.look(file, ROWS, options, listener.progress, words)
        kind = SpanKind(log.span)
        feed = tasks.data.look.look(items, ITEMS, LookOptions(span=kind), listener.progress, words) if items else None
    _check(log, ROWS, "--map names them")
    if feed is not None:
        _check(feed, ITEMS, f"ingest it first, as millrace look {items} --items says, and leave --items out")
    elif "item" not in log.mapping:
        raise ConfigError(f"{file} names its items by {log.mapping['item_id']!r} alone; their texts: --items FEED")
    return _Sources(log, feed, kind)


def _check(facts: SourceFacts, layout: Layout, option: str) -> None:
    if facts.feed and layout is ROWS:
        raise ConfigError(
            f"{facts.source} is {facts.export}, a feed of items; give it as --items, and a log of searches"
        )
    if facts.time_column is None and "--at" not in shlex.split(facts.command):
        raise ConfigError(f"{facts.source}: {next(each.text for each in facts.problems if each.kind == 'missing')}")
    try:
        check_map(facts.mapping, layout)
    except ConfigError as error:
        names = ", ".join(each.name for each in facts.columns)
        raise ConfigError(f"{facts.source}: {error}; its columns are {names}; {option}") from None


def _data(sources: _Sources, encoder: str | None, timezone: str) -> FirstData:
    labels = first_labels(sources.log)
    log, feed = (None if each is None else _in_spans(each, sources.span) for each in (sources.log, sources.feed))
    assert log is not None
    if labels.without_label and "label" in log.mapping:
        log = _remapped(log, {name: column for name, column in log.mapping.items() if name != "label"})
    if encoder and not encoder.startswith("package:"):
        encoder = str(Path(encoder).expanduser().resolve())  # workers of a schedule run elsewhere
    longest = describe(pretrained_folder(encoder)).longest_tokens if encoder else None
    last_over(dt.datetime.now(dt.UTC), timezone, sources.span)  # an unknown time zone is an error before anything else
    return FirstData(log, feed, labels, sources.span, timezone, encoder, longest)


def _in_spans(facts: SourceFacts, span: SpanKind) -> SourceFacts:
    return facts.model_copy(update={"span": span, "command": _with(facts.command, "--span", span)})


def _remapped(facts: SourceFacts, mapping: dict[str, str]) -> SourceFacts:
    return facts.model_copy(update={"mapping": mapping, "command": _with(facts.command, "--map", _as_option(mapping))})


def _with(shown: str, option: str, value: str) -> str:
    """Return a command with another value of an option."""
    words = shlex.split(shown)
    words[words.index(option) + 1] = value
    return shlex.join(words)


def _as_option(mapping: dict[str, str]) -> str:
    order = [*ROWS.columns, *ITEMS.columns]
    return pairs_written((name, mapping[name]) for name in dict.fromkeys(order) if name in mapping)


def _written(store: Store, folder: Path, data: FirstData) -> InitOutput:
    """Write both files in one step, once the settings are known to be valid."""
    choices = first_settings(data)
    overrides = [f"{each.key}={to_yaml(each.value)}" for each in choices]
    config = load_config(None, overrides)
    check_encoder(config)
    gates = gates_in_words(data, config)
    over = last_over(dt.datetime.now(dt.UTC), data.timezone, data.span)
    words = workspace_words(store)
    named = [word for span in (first_span(data, over),) if span for word in ("--span", span)]
    run = ["millrace", "run", *named]
    query = data.column("query")
    asked = [each.value for each in query.common] if query else []
    search = ["millrace", "search", max(asked, key=len, default="WORDS")]
    first = [
        *([data.feed.command] if data.feed else []),
        data.log.command,
        shlex.join([*run, "--dry-run", *words]),
        shlex.join([*run, *words]),
        shlex.join([*search, *words]),
    ]
    about = [_about(each) for each in (data.log, data.feed) if each is not None]
    write_all(
        {
            folder / COMMANDS: commands_text(about, _steps(first, words)).encode(),
            folder / SETTINGS: settings_text(choices, about, gates).encode(),
        }
    )
    return InitOutput(
        files=(SETTINGS, COMMANDS),
        log=_about(data.log),
        feed=_about(data.feed) if data.feed else None,
        settings=tuple(ChosenSetting(key=each.key, value=each.value, reason=each.reason) for each in choices),
        gates=tuple(gates),
        problems=tuple(_problems(data)),
        commands=tuple(first),
    )


def _problems(data: FirstData) -> list[str]:
    """Return the likely mistakes, without the reminder of a feed that was given."""
    sources = [data.log, *([data.feed] if data.feed else [])]
    found = [each.text for source in sources for each in source.problems if not (data.feed and each.kind == "missing")]
    return [*found, *([data.labels.unread] if data.labels.unread else [])]


def _about(facts: SourceFacts) -> str:
    times = f", {facts.first[:10]} to {facts.last[:10]}" if facts.first and facts.last else ""
    time = f"time {facts.time_column}" if facts.time_column else "no times but that of the file"
    return f"{facts.source}: {plural(facts.rows, 'row')}{times}; {_as_option(facts.mapping)}, {time}"


def _steps(first: Sequence[str], workspace: Sequence[str]) -> list[tuple[str, Sequence[str]]]:
    def shown(*words: str) -> str:
        return shlex.join(["millrace", *words, *workspace])

    return [
        ("To the first release. The dry-run says if the data is enough; the run takes minutes.", first),
        ("For each new export, ingest it likewise (`--replace` for a corrected one), then:", [shown("run")]),
        ("To see results and their reasons:", [shown("status"), shown("report"), shown("freshness")]),
        ("On a schedule, by the settings of `millrace.yaml`; it prints the worker's command:", [shown("deploy")]),
    ]
