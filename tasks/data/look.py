"""A first look at a source: its columns, their likely roles, likely problems, and the command that ingests it."""

import contextlib
import datetime as dt
import itertools
import shlex
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple

from tasks.contracts.jobs import Progress
from tasks.contracts.spans import SpanKind
from tasks.data.canonical import ITEMS, ROWS, Canonicaliser, Layout
from tasks.data.encoder_weights import check_weights
from tasks.data.files.csv_rows import CsvOptions, name_of
from tasks.data.files.exports import Found, find_export
from tasks.data.files.facts import ColumnFacts, Problem, SourceFacts
from tasks.data.files.formats import Format, format_of_name
from tasks.data.files.names import TIME, pairs_written
from tasks.data.files.nested import flat, likely_lists
from tasks.data.files.problems import find_problems, free_columns, suggested_spelling
from tasks.data.files.readers import SourceRow
from tasks.data.files.roles import likely_roles
from tasks.data.files.shaping import AS_IT_STANDS, Lookup, Shaper, Shaping, find_beside
from tasks.data.files.sources import SourceReader
from tasks.data.files.spelling import Spelling
from tasks.data.files.survey import Survey
from tasks.data.files.times import parse_time
from tasks.data.likely_mistakes import zeros_as_hits
from tasks.data.pretrained import MODULES, describe, read_settings
from tasks.data.rows import ITEM_ID, LABEL, ROW_ID
from tasks.data.source_spans import open_tables
from tasks.foundation.errors import ConfigError, DataError
from tasks.foundation.nouns import plural
from tasks.foundation.records import Record

_SET_ASIDE = ("--set-aside", "unreadable.jsonl")
_OF_ENCODERS = ("tokenizer.json", "tokenizer_config.json", "model.safetensors", "pytorch_model.bin")
ROWS_IN_SPAN = 1_000  # on average; fewer decide little
ROWS_BETWEEN_REPORTS = 2_000
UNKNOWN_FILE = PurePath("QUERIES")  # in the command, as COLUMN: a person names it
ROWS_THAT_TELL = 100  # read to find the kind of export; records of JSON may leave out columns


class LookOptions(Record):
    """The options of a look apart from the source: everything that a person knows already."""

    form: Format | None = None
    csv: CsvOptions = CsvOptions()
    spelling: Spelling = Spelling()
    mapping: dict[str, str] | None = None  # None: the likely one
    time_column: str | None = None
    span: SpanKind | None = None
    shaping: Shaping = AS_IT_STANDS


def look(
    source: PurePath,
    layout: Layout,
    options: LookOptions,
    progress: Callable[[Progress], None] | None = None,
    workspace: Sequence[str] = (),
) -> SourceFacts:
    """Read a source once, in bounded memory, and return its facts.

    Args:
        workspace: words that name the workspace in the command.

    Raises:
        ConfigError: a wrong path or format, or a column that the options name and the source lacks.
        DataError: a file is empty, damaged, or not of its format, or too many of its lines can't be read.
    """
    _refuse_encoder(source)
    reader, survey, shaper, found, layout, shaping, unreadable = _read(source, layout, options, progress)
    roles = _roles(survey.columns(detect_languages=False), layout, options, found, shaping.explode)
    columns = survey.columns(ids=_ids(roles, layout))
    spelling = suggested_spelling(columns, survey, options.spelling, roles.get("deleted"))
    spelling = found.spelling(spelling, roles) if found else spelling
    first, last = _range(survey, roles.get(TIME), spelling.dayfirst)
    span = options.span or _span(survey.rows, first, last)
    mapping = {name: column for name, column in roles.items() if name != TIME}
    unknown = found is not None and shaping.lookup is not None and shaping.lookup.path == UNKNOWN_FILE
    mapping |= {"query": found.query} if found and unknown else {}
    at = layout is ITEMS or found is not None or not free_columns(columns, roles)  # the last: judgements, as a rule
    if layout is ROWS and at and first is None:
        first = last = reader.modified
    told = {**({TIME: ""} if found and at else {}), **({"query": ""} if unknown else {}), **roles}
    problems = find_problems(survey, columns, told, layout is ITEMS, not reader.form.texts_are_values)
    problems += [_unknown_queries(found)] if found and unknown else []
    problems += [_unreadable_lines(unreadable)] if unreadable else []
    words = _ingest_words(source, layout, options, reader)
    words += [*shaping.options, *_time_words(roles.get(TIME), reader, at)]
    words += ["--span", span, "--map", _map(mapping, layout)]
    return SourceFacts(
        source=str(source),
        export=found.export.name if found else None,
        feed=layout is ITEMS,
        format=reader.form,
        delimiter=next((name_of(each.delimiter) for each in reader.forms.values()), None),
        files=len(reader.files),
        rows=survey.rows,
        left_out=shaper.left_out,
        unreadable=len(unreadable),
        sampled=len(survey.sample),
        first=first and first.isoformat(),
        last=last and last.isoformat(),
        columns=tuple(with_roles(columns, roles)),
        mapping=mapping,
        time_column=roles.get(TIME),
        span=span,
        problems=tuple(problems),
        remarks=found.remarks(columns) if found else (),
        command=shlex.join([*words, *spelling.options, *(_SET_ASIDE if unreadable else ()), *workspace]),
    )


class _Read(NamedTuple):
    """A source that was read to its end."""

    reader: SourceReader
    survey: Survey
    shaper: Shaper
    found: Found | None  # the tool whose export it is
    layout: Layout
    shaping: Shaping
    unreadable: list[DataError]


def _read(source: PurePath, layout: Layout, options: LookOptions, progress: Callable[[Progress], None] | None) -> _Read:
    """Read all records, as the first of them tell. Raises as `look`."""
    unreadable: list[DataError] = []
    reader = SourceReader(source, options.form, options.csv, lambda _, error: unreadable.append(error))
    survey = Survey(reader.form.texts_are_values, options.spelling)
    what = f"reading {source.name}"
    records = iter(reader)
    first_records = list(itertools.islice(records, ROWS_THAT_TELL))
    names = dict.fromkeys(name for record in first_records for name in flat(record.values))
    found = find_export(names, reader.form, layout is ITEMS) if options.mapping is None else None
    layout = ITEMS if found and found.export.feed else layout
    shaping = _with_export(options.shaping, found, source) if found else options.shaping
    if not shaping.explode and not found:
        shaping = shaping._replace(explode=_likely_lists(first_records, layout, options))
    id_column = (options.mapping or {}).get("id") if layout is ROWS else None
    complete = reader.form in (Format.csv, Format.parquet) if options.shaping.explode else None
    with _shaper(shaping, found, id_column, complete) as shaper:
        for record in itertools.chain(first_records, records):
            for row in shaper.rows(record):
                survey.add(row)
                if progress and survey.rows % ROWS_BETWEEN_REPORTS == 0:
                    note = plural(survey.rows, "row")
                    progress(Progress(what=what, done=reader.bytes_read, total=reader.bytes_total, note=note))
    if not survey.rows and unreadable and not (shaper.left_out or shaper.without):
        raise unreadable[0]
    if options.shaping.explode:
        shaper.require_lists(reader.files[0])
    if not survey.rows:
        raise shaper.no_row(source)
    return _Read(reader, survey, shaper, found, layout, shaping, unreadable)


def _ingest_words(source: PurePath, layout: Layout, options: LookOptions, reader: SourceReader) -> list[str]:
    """Return the begin of the command that ingests the source, up to the options of its format."""
    words = ["millrace", "ingest", "--source" if layout is ROWS else "--items", str(source)]
    words += ["--format", reader.form] if format_of_name(source.name) is None and reader.is_file else []
    words += ["--delimiter", name_of(options.csv.delimiter)] if options.csv.delimiter else []
    return words + (["--quote", options.csv.quote] if options.csv.quote else [])


def _unreadable_lines(errors: Sequence[DataError]) -> Problem:
    many = plural(len(errors), "line")
    text = f"{many} can't be read, the first: {errors[0]}; correct them, or --set-aside FILE leaves them out"
    return Problem(kind="unreadable", column=None, text=text)


def _refuse_encoder(source: PurePath) -> None:
    """Raise ConfigError for a local folder of an encoder: its facts and the command that begins with it, or a fault."""
    folder = Path(source) if isinstance(source, Path) else None
    if folder is None or not (folder / "config.json").is_file():
        return
    if not any((folder / name).is_file() for name in (MODULES, *_OF_ENCODERS)):
        return
    described = describe(folder)
    taken = check_weights(described.encoder)
    kind = read_settings(described.encoder / "config.json").get("model_type")
    fit = f", whose {taken.tensors} tensors fit" if taken else ""
    raise ConfigError(
        f"{source} is the folder of an encoder ({kind}{fit}), and has no rows. To begin with it: millrace init LOG "
        f"--encoder {shlex.quote(str(folder))}"
    )


def _with_export(shaping: Shaping, found: Found, source: PurePath) -> Shaping:
    """Return the shaping that a known export needs; the options that a person has given count more."""
    explode = (found.column(found.export.explode),) if found.export.explode else ()
    lookup = None
    if found.needs_lookup:
        lookup = Lookup(find_beside(source, found.by, found.query) or UNKNOWN_FILE, found.by)
    return Shaping(shaping.explode or explode, shaping.lookup or lookup, shaping.only or found.only)


def _unknown_queries(found: Found) -> Problem:
    text = (
        f"the texts of the queries are in another file, with the columns {found.by!r} and {found.query!r}: put it into "
        f"this folder and look again, or name it in place of {UNKNOWN_FILE}"
    )
    return Problem(kind="lookup", column=found.query, text=text)


@contextlib.contextmanager
def _shaper(shaping: Shaping, found: Found | None, id_column: str | None, complete: bool | None) -> Iterator[Shaper]:
    """Open the shaper. A file that is not known yet is not looked up, and the query not asked for."""
    if found and shaping.lookup and shaping.lookup.path == UNKNOWN_FILE:
        others = tuple(each for each in shaping.only if each.column != found.query)
        shaping = Shaping(shaping.explode, None, others)
    if shaping.lookup is None:
        yield Shaper(shaping, flat, flat, id_column, complete, None)
    else:
        with tempfile.TemporaryDirectory() as folder, open_tables(Path(folder) / "lookup.sqlite") as tables:
            yield Shaper(shaping, flat, flat, id_column, complete, tables)


def surveyed(survey: Survey, canonicaliser: Canonicaliser) -> list[ColumnFacts]:
    """Return the columns of an ingest with their roles, and with the types that all their rows gave them."""
    types = {"float64": "number", "bool": "boolean", "string": "text", "code": "text"}
    found = {source: types[kind] for source, (_, kind) in canonicaliser.columns().items()}
    columns = []
    for each in survey.columns(detect_languages=False, ids=_ids(canonicaliser.mapping, canonicaliser.layout)):
        kind = found.get(each.name, each.type)
        odd = kind == "text" and each.type != "text" and each.name not in canonicaliser.codes()
        seldom = {"suggests": each.type} if odd else {}
        columns.append(each.model_copy(update={"type": kind, **seldom}))
    return with_roles(columns, _given_roles(canonicaliser))


def _given_roles(canonicaliser: Canonicaliser) -> dict[str, str]:
    time = canonicaliser.time_column
    return {**({TIME: time} if time else {}), **canonicaliser.mapping}


def problems_of(
    survey: Survey, columns: Sequence[ColumnFacts], canonicaliser: Canonicaliser, form: Format
) -> list[Problem]:
    """Return the likely mistakes of an ingest, without the reminder of a feed, which a note is about."""
    roles = _given_roles(canonicaliser)
    found = find_problems(survey, columns, roles, canonicaliser.layout is ITEMS, not form.texts_are_values)
    label = next((each for each in columns if each.role == LABEL), None)
    unread = zeros_as_hits(label) if label else None
    return [*(each for each in found if each.kind != "missing"), *([unread] if unread else [])]


def with_problems(facts: SourceFacts, problems: Sequence[Problem]) -> SourceFacts:
    """Return the facts with further problems."""
    return facts.model_copy(update={"problems": (*facts.problems, *problems)})


def with_roles(columns: Sequence[ColumnFacts], roles: Mapping[str, str]) -> list[ColumnFacts]:
    """Return the columns with their roles."""
    by_column: dict[str, str] = {}
    for role, column in roles.items():
        by_column.setdefault(column, role)
    return [each.model_copy(update={"role": by_column.get(each.name)}) for each in columns]


def _roles(
    columns: Sequence[ColumnFacts], layout: Layout, options: LookOptions, found: Found | None, explode: Sequence[str]
) -> dict[str, str]:
    roles = likely_roles(columns, layout is ITEMS, {"item_id": explode[0]} if explode and not found else {})
    if explode and not found:
        roles.pop("id", None)  # rows of one search share it
    if found:
        time = {TIME: roles[TIME]} if TIME in roles and layout is ROWS else {}
        roles = {**time, **found.roles(columns)}
    likely = roles.pop(TIME, None)
    time = options.time_column or likely
    given = {TIME: time} if time else {}
    roles = {**given, **(options.mapping if options.mapping is not None else roles)}
    names = [each.name for each in columns]
    for column in roles.values():
        if column not in names:
            raise ConfigError(f"no column {column!r}; the source has {', '.join(names)}")
    return roles


def _likely_lists(records: Sequence[SourceRow], layout: Layout, options: LookOptions) -> tuple[str, ...]:
    """Return the columns of a log whose lists of ids are likely meant to have a row for each id."""
    if layout is ITEMS:
        return ()
    likely = likely_lists([flat(record.values) for record in records])
    wanted = options.mapping
    return likely if wanted is None or wanted.get("item_id") in likely else ()


def _ids(roles: Mapping[str, str], layout: Layout) -> set[str]:
    """Return the columns that are mapped as ids of rows or items."""
    return {column for name, column in roles.items() if layout.columns.get(name) in (ROW_ID, ITEM_ID)}


def _time_words(column: str | None, reader: SourceReader, at: bool) -> list[str]:
    """Return the option that gives the times; with `at`, if there are none, the time of the newest file."""
    if column is not None or not at:
        return ["--time-column", column or "COLUMN"]
    return ["--at", reader.modified.strftime("%Y-%m-%dT%H:%M:%SZ")]


def _map(mapping: Mapping[str, str], layout: Layout) -> str:
    needed = [name for name in layout.needed if name not in mapping and not (name == "item" and "item_id" in mapping)]
    order = [name for name in layout.columns if name in mapping or name in needed]
    return pairs_written((name, mapping.get(name, "COLUMN")) for name in order)


def _range(survey: Survey, column: str | None, dayfirst: bool) -> tuple[dt.datetime | None, dt.datetime | None]:
    """Return the earliest and the latest time of the sample."""
    if column is None:
        return None, None
    times = []
    for row in survey.sample:
        try:
            times.append(parse_time(row.get(column), dayfirst))
        except (ValueError, OverflowError, TypeError):
            continue
    return (min(times), max(times)) if times else (None, None)


def _span(rows: int, first: dt.datetime | None, last: dt.datetime | None) -> SpanKind:
    """Return the shortest length with enough rows in a span, else the longest that divides the data well."""
    if first is None or last is None:
        return SpanKind.month
    days = {SpanKind.day: 1, SpanKind.week: 7, SpanKind.month: 30, SpanKind.quarter: 91, SpanKind.year: 365}
    covered = (last - first).days + 1
    filled = [kind for kind in days if covered >= 1.5 * days[kind]]
    enough = [kind for kind in filled if rows * min(1, days[kind] / covered) >= ROWS_IN_SPAN]
    return enough[0] if enough else filled[-1] if filled else SpanKind.month
