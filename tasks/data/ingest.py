"""Ingest a user's files as spans: rows as `spans/<span>/v<n>/`, items of a feed as `items/<span>/v<n>/`.

Spans are immutable. The same rows change nothing. Other rows make a new version, once a person has chosen to replace
the version before or to merge with it. The stage validate, not this module, judges the quality of the rows.
"""

import contextlib
import datetime as dt
import errno
import itertools
import logging
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath

import pyarrow as pa
from pydantic import Field

from configs.schema.validation import BeforeConfig
from infra.store.base import Store, wait_for_lock
from infra.store.lease import CheckedStore, convert_lost_lease
from infra.store.manifest import read_fact
from infra.store.temporary import INGEST, scratch_folder
from tasks.contracts.evaluation import USUAL_SPANS, few_rows
from tasks.contracts.jobs import Progress
from tasks.contracts.references import SpanRef
from tasks.contracts.spans import SpanKind, last_day
from tasks.data.canonical import ITEMS, ROWS, Canonicaliser, Layout, UnknownFlag
from tasks.data.erased import read_erased
from tasks.data.files.csv_rows import CsvOptions, Quote, name_of
from tasks.data.files.facts import ColumnFacts, Problem
from tasks.data.files.formats import Format
from tasks.data.files.roles import flags_of
from tasks.data.files.shaping import AS_IT_STANDS, Shaper, Shaping
from tasks.data.files.sources import SourceReader
from tasks.data.files.spelling import PLAIN, Spelling
from tasks.data.files.survey import Survey, cell
from tasks.data.files.times import believed, refuse_far_spans
from tasks.data.files.values import is_missing_word
from tasks.data.join import Join, join_of
from tasks.data.likely_mistakes import join_problem
from tasks.data.look import problems_of, surveyed
from tasks.data.mapping import check_map, taken_apart
from tasks.data.new_versions import IngestedSpan, Known, VersionContext, choose_versions, commit_version
from tasks.data.rows import ITEM_ID, LIVE, has_ids_alone
from tasks.data.source_spans import BuiltSpan, ItemTexts, SetAside, Spools, build_spans, open_tables, spool_rows
from tasks.data.span_versions import list_feeds, list_spans, noted, refuse_other_kinds
from tasks.data.swapped_sources import refuse_feed_as_log, refuse_log_as_feed
from tasks.foundation.errors import DataError, DiskError
from tasks.foundation.records import Record

_WORDS_OF_ROWS = 100_000  # read again for an error about a word for deleted
_MOST_WORDS = 12
_LOGS = 5  # newest spans, of which the newest of ids alone is compared with a feed


class IngestOptions(Record):
    """The options of an ingest apart from its columns."""

    known: Known | None = None  # None: refuse a span that the workspace has with other rows
    not_before: dt.date | None = None  # the first day of the data, in UTC
    not_after: dt.date | None = None  # the last day of the data, in UTC
    csv: CsvOptions = CsvOptions()
    spelling: Spelling = PLAIN
    shaping: Shaping = AS_IT_STANDS
    set_aside: Path | None = None  # a new file for rows that can't be used; None: the first one is an error

    @property
    def bounded(self) -> tuple[bool, bool]:
        """True for the first day, and for the last, if a person gave it."""
        return self.not_before is not None, self.not_after is not None


DEFAULTS = IngestOptions()


class IngestSummary(Record):
    """The result of an ingest, spans oldest first."""

    spans: tuple[IngestedSpan, ...]
    rows: int
    files: int
    set_aside: int = Field(default=0, description="rows that can't be used, written to the file of --set-aside")
    columns: tuple[ColumnFacts, ...] = Field(default=(), description="columns of the source, without languages")
    problems: tuple[Problem, ...] = Field(default=(), description="likely mistakes in the mapping and in the columns")
    notes: tuple[str, ...] = Field(default=(), description="remarks on the source, for people")
    join: Join | None = Field(
        default=None, description="the log's ids in the item feed; null: no log of ids, or no feed"
    )


def ingest(
    store: Store,
    source: PurePath,
    form: Format | None,
    time: str | dt.datetime,
    span: SpanKind,
    mapping: Mapping[str, str],
    layout: Layout = ROWS,
    report: Callable[[Progress], None] = lambda _: None,
    options: IngestOptions = DEFAULTS,
) -> IngestSummary:
    """Split the records of `source` into spans, and commit the new and the changed spans.

    All spans are built in a temporary folder (TMPDIR) first, so bad input changes nothing in the workspace. Memory use
    does not grow with the input. Temporary disk use grows to about twice the uncompressed input, and to three times if
    the workspace has its spans with other rows.

    Args:
        source: a file, or a folder of files.
        form: None: the names of the files give it.
        time: the source column with the time, as `parse_time` reads it, or the time of all records.
        mapping: name in `layout` -> source column; `a.b` is the part b of a nested column a.
        report: called regularly, first with bytes read, then with spans written.

    Raises:
        ConfigError: a wrong path or mapping, a span kind other than the workspace's, or, without `options.known`, spans
            that the workspace has with other rows; for a feed, only if items would be gone.
        DataError: an unreadable file, a missing column, a bad value or time (names file, row and column), or a feed in
            the place of a log, or the other way round.
        DiskError: a disk is full.
        Conflict: another ingest still writes after ten minutes.
    """
    check_map(mapping, layout)
    if layout is ROWS:
        refuse_other_kinds(store, span)
    aside = SetAside(options.set_aside)
    reader = SourceReader(source, form, options.csv, None if options.set_aside is None else aside.take_line)
    times = believed(dt.datetime.now(dt.UTC), options.not_before, options.not_after)
    canonicaliser = Canonicaliser(reader.form, time, span, mapping, layout, times, options.spelling)
    temporary = f"the temporary folder {tempfile.gettempdir()}"
    with (
        _frugal_arrow(),
        _explaining_full_disk(temporary, "free some space, or set TMPDIR to a folder on a larger disk"),
        scratch_folder(INGEST) as scratch,
        open_tables(scratch / "items.sqlite") as tables,
        aside,
    ):
        items = ItemTexts(tables)
        survey = Survey(reader.form.texts_are_values, options.spelling, whole=False)
        shaper = _shaper(reader.form, time, mapping, layout, options.shaping, tables)
        with _naming_words(source, form, mapping, options):
            spools, seen, left_out = spool_rows(
                reader, scratch, canonicaliser, items, aside, report, survey, shaper, read_erased(store)
            )
        if layout is ROWS:
            refuse_far_spans(span, seen, _known_rows(store), options.bounded)
        else:
            refuse_log_as_feed(source, mapping, items, survey)
        built = build_spans(spools, scratch, canonicaliser)
        if layout is ROWS:
            refuse_feed_as_log(store, source, built)
        choice = VersionContext(store, layout, options.known, scratch, options.spelling)
        spans = _commit(choice, span, built, spools, canonicaliser, items, report)
        join, unjoined = _joined(store, canonicaliser, spans)
        joined = [join.sentence] if join is not None and not unjoined else []
        columns = tuple(surveyed(survey, canonicaliser))
        return IngestSummary(
            spans=spans,
            rows=sum(each.rows for each in built),
            files=len(reader.files),
            set_aside=aside.rows,
            columns=columns,
            problems=(
                *problems_of(survey, columns, canonicaliser, reader.form),
                *unjoined,
                *_few(store, layout, spans),
            ),
            notes=(*_notes(reader, items, aside, shaper, left_out), *_text_notes(store, canonicaliser), *joined),
            join=join,
        )


def _commit(
    choice: VersionContext,
    span: SpanKind,
    built: Sequence[BuiltSpan],
    spools: Spools,
    canonicaliser: Canonicaliser,
    items: ItemTexts,
    report: Callable[[Progress], None],
) -> tuple[IngestedSpan, ...]:
    """Choose and write the versions of the spans, alone in the workspace. Raises as `ingest`."""
    store, layout = choice.store, choice.layout
    with (
        _explaining_full_disk(f"the workspace {store.uri}", "free some space, and ingest again"),
        convert_lost_lease("ingest"),
        wait_for_lock(store, "ingest", logging.getLogger("millrace").warning) as lock,
    ):
        held = CheckedStore(store, lambda _: lock.confirm())
        if layout is ROWS:
            refuse_other_kinds(store, span)
        chosen = choose_versions(choice, built, spools, canonicaliser, items)
        numbers = {version.span.name: version.span.version for version in chosen}
        with noted(held, numbers) if layout is ITEMS else contextlib.nullcontext():
            for done, version in enumerate(chosen, start=1):
                commit_version(held, choice, version, canonicaliser.ids_alone)
                report(Progress(what="writing spans", done=done, total=len(chosen), note=version.span.name))
    return tuple(version.span for version in chosen)


def _shaper(
    form: Format,
    time: str | dt.datetime,
    mapping: Mapping[str, str],
    layout: Layout,
    shaping: Shaping,
    tables: sqlite3.Connection,
) -> Shaper:
    """Return the shaper of the records of a source, which takes apart the nested columns that are named."""
    named = [*([time] if isinstance(time, str) else []), *mapping.values(), *shaping.columns]
    row_id = mapping.get("id") if layout is ROWS else None
    complete = form in (Format.csv, Format.parquet)
    return Shaper(shaping, taken_apart(named), taken_apart(shaping.explode), row_id, complete, tables)


@contextlib.contextmanager
def _naming_words(
    source: PurePath, form: Format | None, mapping: Mapping[str, str], options: IngestOptions
) -> Iterator[None]:
    """Add to the error about a word for deleted all words of its column."""
    try:
        yield
    except UnknownFlag as error:
        live = mapping.get(LIVE) == error.column
        words = _words_of(SourceReader(source, form, options.csv), error.column, live, options.spelling)
        raise DataError(f"{error}{words}") from error


def _words_of(reader: SourceReader, column: str, live: bool, spelling: Spelling) -> str:
    """Return the end of an error about a word for deleted: all words of its column, and the options that read them."""
    take_apart = taken_apart([column])
    words: Counter[str] = Counter()
    for record in itertools.islice(reader, _WORDS_OF_ROWS):
        if (word := cell(take_apart(record.values), column)) is not None and not is_missing_word(word):
            words[word.strip().casefold()] += 1
        if len(words) > _MOST_WORDS:
            return f"; column {column!r} has many values, such as {', '.join(map(repr, list(words)[:3]))}: map another"
    shown = ", ".join(f"{word} ({count:,})" for word, count in words.most_common())
    flags = flags_of(words, spelling.true, spelling.false)
    if not flags.gone and (flags.others or not flags.live):
        meant = "an item on sale" if live else "a deleted item"
        return f"; its words are {shown}: give those for {meant} with --true, the others with --false"
    return f"; its words are {shown}: {(flags.opposite if live else flags).options} reads them"


def _notes(reader: SourceReader, items: ItemTexts, aside: SetAside, shaper: Shaper, erased: int) -> Iterator[str]:
    """Yield remarks on unexpected properties of the source; `erased` rows had an erased value."""
    found = {form.delimiter for form in reader.forms.values() if form.delimiter != ","}
    if found and reader.csv.delimiter is None:
        yield f"fields are separated by {' or '.join(sorted(map(name_of, found)))}, as the first lines show"
    quotes = {form.quote for form in reader.forms.values() if form.quote is not Quote.double}
    if quotes and reader.csv.quote is None:
        yield f"quotes are read as with --quote {' or '.join(sorted(quotes))}, as the first lines show"
    if reader.empty_files:
        yield f"files without rows: {reader.empty_files:,} of {len(reader.files):,}"
    if shaper.left_out:
        yield f"rows left out by the options: {shaper.left_out:,}"
    if shaper.looked_up and shaper.looked_up.without:
        yield f"rows whose key the file of --lookup does not have: {shaper.looked_up.without:,}"
    if aside.rows:
        yield f"rows that can't be used: {aside.rows:,}, in {aside.path}; the first: {aside.first}"
    if changed := items.with_several_texts():
        yield f"items with more than one text: {changed:,}; the newest by time counts"
    if erased:
        yield f"rows with an erased value: {erased:,}, left out"
    if shaper.without:
        yield f"rows without an id in {' or '.join(shaper.shaping.explode)}: {shaper.without:,}, left out"


def _text_notes(store: Store, canonicaliser: Canonicaliser) -> Iterator[str]:
    """Yield the remark on rows of ids alone."""
    if not canonicaliser.ids_alone:
        return
    none = "" if list_feeds(store) else ", and the workspace has no feed yet; ingest it with --items FILE"
    yield f"rows name their items by id alone: validate takes each text from the item feed{none}"


def _few(store: Store, layout: Layout, spans: Sequence[IngestedSpan]) -> Iterator[Problem]:
    """Yield the spans of a log that are over and have far fewer rows than usual. A feed has as many as changed."""
    if layout is not ROWS:
        return
    names = [ref.name for ref in list_spans(store)]
    first = names.index(spans[0].name)
    read = _known_rows(store)
    here = {each.name: each.rows for each in spans}
    rows = {name: here[name] if name in here else read[name]() for name in names[max(0, first - USUAL_SPANS) :]}
    today = dt.datetime.now(dt.UTC).date()
    for each in few_rows(rows, BeforeConfig().missing.warn):
        if each.span in here and last_day(each.span) < today:
            text = f"{each.sentence}; is its export whole? The rest comes by the same command with --merge"
            yield Problem(kind="few", column=None, text=text)


def _joined(
    store: Store, canonicaliser: Canonicaliser, spans: Sequence[IngestedSpan]
) -> tuple[Join | None, list[Problem]]:
    """Return the join of the ingested log and the feed, or of the newest log of ids and the ingested feed."""
    refs = [SpanRef(name=each.name, version=each.version) for each in spans]
    alone = canonicaliser.ids_alone
    mapped = {canonicaliser.layout.columns[name]: source for name, source in canonicaliser.mapping.items()}
    column = mapped.get(ITEM_ID)
    if canonicaliser.layout is ITEMS:
        logs = (span for span in reversed(list_spans(store)[-_LOGS:]) if has_ids_alone(store, span))
        refs, alone = list(itertools.islice(logs, 1)), True
    if column is None or not refs:
        return None, []
    join = join_of(store, refs, list_feeds(store))
    found = join_problem(join, column, alone) if join is not None else None
    return join, [found] if found else []


def _known_rows(store: Store) -> dict[str, Callable[[], int]]:
    """Return a function for each span of the workspace that reads its number of rows."""
    return {ref.name: lambda ref=ref: read_fact(store, ref.prefix, "rows", int) for ref in list_spans(store)}


@contextlib.contextmanager
def _frugal_arrow() -> Iterator[None]:
    """Use malloc: Arrow's own allocator keeps tens of megabytes of freed memory, and more for a longer input."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


@contextlib.contextmanager
def _explaining_full_disk(where: str, way_out: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskError(f"no space left in {where}; {way_out}") from error
        raise
