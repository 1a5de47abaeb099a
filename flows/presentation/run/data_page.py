"""Pages of a run's data: its columns and their drift from the spans before, and the rows that were set apart.

The page of the columns has counts and shares, no rows. `millrace serve` makes the page of the rows, by reason, when it
is asked for; it is never stored, so that deleted rows are gone.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from flows.presentation import html
from flows.presentation.model import (
    HISTORY_KEY,
    Cell,
    Page,
    Section,
    Table,
    Tile,
    passed,
    table,
    unreadable,
)
from flows.presentation.stages import columns
from flows.presentation.stages.failure import read_data_failure
from flows.presentation.wording import NONE, count, number, plural, share, visible
from infra.store.base import Store
from infra.store.records import find_record
from tasks.contracts.outcomes import Check, ValidateOutcome
from tasks.contracts.profiles import SEPARATOR, ColumnDrift, ColumnProfile, SampleRow, SpanProfile
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import DATA_PAGE, REPORT, ROWS
from tasks.foundation.errors import StoreError
from tasks.runs.bad_rows import EACH_REASON, LOOKED_AT, MOST_ROWS, BadRows, read_bad_rows, read_waiting
from tasks.runs.run import Run, read_run
from tasks.runs.snapshot import Snapshot

MOST_SPANS = 3  # with sections of their own, the newest; a first run may take all spans at once
MOST_DRIFTS = 24  # figures
DRIFT = " drift"  # end of the name of a check of drift
QUANTILES = {"0": "least", "0.05": "5 %", "0.25": "25 %", "0.5": "middle", "0.75": "75 %", "0.95": "95 %", "1": "most"}


def data_html(store: Store, run_key: str) -> bytes | None:
    """Return the page of a run's data as HTML; None if validate made no profile. Raises as `read_run`."""
    run = read_run(Snapshot(store), run_key)
    made = run.outcome(Stage.validate)
    if not isinstance(made, ValidateOutcome) or not made.profiles:
        return None
    return html.render(data_page(store, run, made))


def data_page(store: Store, run: Run, validated: ValidateOutcome) -> Page:
    """Return the profiles of the newest spans that the run validated, and the drift of its window.

    A profile that can't be read is left out, and named.
    """
    problems: list[str] = []
    newest = list(validated.profiles)[-MOST_SPANS:]
    profiles = [each for span in newest if (each := _read(store, validated.profiles[span], problems))]
    before = _before(run, problems)
    beyond = sum(each.psi > each.limit for each in validated.drifts)
    drawn = {each.name for each in validated.drifts[:MOST_DRIFTS]} if len(newest) == 1 else set[str]()
    older = len(validated.profiles) - len(newest)
    spans = [section for profile in reversed(profiles) for section in _span(profile, before, drawn, len(newest) == 1)]
    title = f"{run.span}: the data"
    return Page(
        title=f"{title} (run {run.run_key})",
        workspace=run.snapshot.store.uri,
        key=DATA_PAGE.key(run=run.run_key),
        heading=title,
        summary=f"{count(validated.rows_clean)} of {plural(validated.rows_in, 'row')} are clean. "
        + _drifted(validated, beyond),
        about=(f"The newest {len(newest)} of {len(validated.profiles)} spans of the run.",) if older else (),
        state=None,
        tiles=(
            Tile("Clean rows", Cell(count(validated.rows_clean)), f"of {count(validated.rows_in)}"),
            Tile(
                "Set apart",
                Cell(count(validated.rows_quarantined)),
                share(validated.rows_quarantined / validated.rows_in if validated.rows_in else 0.0),
            ),
            *(Tile("Columns", Cell(str(len(profile.columns))), profile.span) for profile in profiles[-1:]),
            Tile(
                "Drifted columns",
                Cell(str(beyond), *(("!", "refused") if beyond else ("✓", "good"))),
                f"of {len(validated.drifts)} compared",
            ),
        ),
        boxes=unreadable(problems),
        sections=(*_drift(run, validated), *spans),
        near=(Cell("Report of the run", key=REPORT.key(run=run.run_key)), Cell("History", key=HISTORY_KEY)),
    )


def _read(store: Store, key: str, problems: list[str]) -> SpanProfile | None:
    try:
        return find_record(store, key, SpanProfile)
    except StoreError as error:
        problems.append(str(error))
        return None


def _before(run: Run, problems: list[str]) -> SpanProfile | None:
    """Return the profile of the last span before the window; None without one, or if its run is gone."""
    last = run.plan.history[-1] if run.plan and run.plan.history else None
    fields = ROWS.match(f"{last.prefix}/rows") if last else None
    if last is None or fields is None:
        return None
    made = Run(run.snapshot, fields["run"]).outcome(Stage.validate)
    key = made.profiles.get(last.span.name) if isinstance(made, ValidateOutcome) else None
    return _read(run.snapshot.store, key, problems) if key else None


def _drifted(validated: ValidateOutcome, beyond: int) -> str:
    if not validated.drifts:
        return "No column could be compared with earlier spans."
    compared = plural(len(validated.drifts), "column")
    if not beyond:
        return f"{compared} compared with the spans before, and none moved beyond its limit."
    names = ", ".join(each.name for each in validated.drifts[:beyond])
    return f"{compared} compared with the spans before; beyond the limit: {names}."


def _drift(run: Run, validated: ValidateOutcome) -> tuple[Section, ...]:
    """Return each compared column before and now, with its distance, limit and verdict."""
    judged = {check.name.removesuffix(DRIFT): check for check in validated.checks if check.name.endswith(DRIFT)}
    rows = [_drift_row(each, judged) for each in validated.drifts]
    known = {each.name for each in validated.drifts}
    left = [(name, check.sentence) for name, check in judged.items() if name not in known]
    if not rows and not left:
        return ()
    spans = [rows.span.name for rows in run.plan.history] if run.plan else []
    since = f"Before: {'span' if len(spans) == 1 else 'the newest rows of spans'} {_between(spans)}. " if spans else ""
    lines = (
        f"{since}The distance is the population stability index: the sum over all bars of the change of a share, times "
        "the logarithm of its factor. The limit has the part in it that chance alone gives.",
    )
    heads = ("column", "moved most", ">before", ">now", ">distance", ">limit", "verdict")
    tables = (
        *((table("Most drift first", heads, rows),) if rows else ()),
        *((table("Other checks of drift", ("column", "~found"), left),) if left else ()),
    )
    shown = Section(
        "Before and now", figures=tuple(columns.drift_figure(each) for each in validated.drifts[:MOST_DRIFTS])
    )
    return (Section("Drift", lines, id="drift", tables=tables, parts=(shown,) if rows else ()),)


def _drift_row(each: ColumnDrift, judged: Mapping[str, Check]) -> tuple[Cell | str, ...]:
    moved = max(each.bins, key=lambda bar: abs(bar.now - bar.earlier))
    check = judged.get(each.name)
    verdict = passed(check.passed if check else each.psi <= each.limit, each.severity)
    return (
        each.name,
        moved.label,
        share(moved.earlier),
        share(moved.now),
        number(each.psi),
        number(each.limit),
        verdict,
    )


def _between(spans: Sequence[str]) -> str:
    return spans[0] if len(spans) == 1 else f"{spans[0]} to {spans[-1]}"


def _span(profile: SpanProfile, before: SpanProfile | None, drawn: Collection[str], alone: bool) -> Iterator[Section]:
    """Yield the columns of a span as a table, and as figures; values that `drawn` has are in a figure already."""
    of, mark = ("", "") if alone else (f" of {profile.span}", f"-{profile.span}")
    old = {column.name: column for column in before.columns} if before is not None else {}
    sampled = (
        f"Shares and quantiles are those of a sample of {plural(profile.sampled, 'row')}."
        if profile.sampled < profile.rows
        else ""
    )
    lines = (f"{plural(profile.rows, 'clean row')} of span {profile.span} v{profile.version}. {sampled}".rstrip(),)
    yield Section(
        f"Columns{of}",
        lines,
        id=f"columns{mark}",
        tables=(_columns(profile, before, old), *_quantiles(profile, before, old), *_unseen(profile)),
    )
    yield Section(f"Values{of}", id=f"values{mark}", figures=tuple(columns.figures(profile, drawn)))


def _columns(profile: SpanProfile, before: SpanProfile | None, old: Mapping[str, ColumnProfile]) -> Table:
    rows = []
    for column in profile.columns:
        was = old.get(column.name)
        earlier = (NONE, NONE) if was is None else (share(was.null_share), count(was.distinct))
        no_value, distinct = share(column.null_share), count(column.distinct)
        cells = (no_value, earlier[0], distinct, earlier[1]) if before else (no_value, distinct)
        rows.append((column.name, column.kind, Cell(column.type, code=True), *cells, _commonest(column)))
    of = f">in {before.span}" if before else ""
    numbers = (">no value", of, ">distinct", of) if before else (">no value", ">distinct")
    caption = f"Each column{f', next to the span before, {before.span}' if before else ''}"
    return table(caption, ("column", "kind", "type", *numbers, "~commonest"), rows)


def _commonest(column: ColumnProfile) -> str:
    return ", ".join(f"{each.value} {share(each.share)}" for each in column.top[:4]) or NONE


def _quantiles(profile: SpanProfile, before: SpanProfile | None, old: Mapping[str, ColumnProfile]) -> tuple[Table, ...]:
    """Return the quantiles of numbers and text lengths, each with a row of the span before."""
    rows = []
    for column in profile.columns:
        if not column.quantiles:
            continue
        name = f"{column.name} length" if column.kind == "text" else column.name
        rows.append((name, profile.span, *_of(column.quantiles)))
        if before is not None and column.name in old and old[column.name].quantiles:
            rows.append((name, before.span, *_of(old[column.name].quantiles)))
    heads = ("column", "span", *(f">{name}" for name in QUANTILES.values()))
    return (table("Quantiles of numbers, and of the lengths of texts in characters", heads, rows),) if rows else ()


def _of(quantiles: Mapping[str, float]) -> tuple[str, ...]:
    return tuple(f"{quantiles[name]:,.6g}" if name in quantiles else NONE for name in QUANTILES)


def _unseen(profile: SpanProfile) -> tuple[Table, ...]:
    rows = [(name, share(part)) for name, part in profile.unseen.items()]
    if profile.unknown_tokens is not None:
        rows.append(("tokens of the texts", share(profile.unknown_tokens)))
    return (table("Never seen by the parent checkpoint", ("column", ">of the rows"), rows),) if rows else ()


ROWS_PAGE = "runs/{run}/rows.html"  # its address below that of `millrace serve`; no file
FIRST = ("row_id", "time", "query", "item", "item_id", "label")  # shown as columns; all others share the last one
LONG = ("query", "item")

# Pattern of a reason -> the way out.
WAYS_OUT = (
    (r"row_id", "The first row of an id is kept. Does the source export rows twice, or is another column the id?"),
    (r"unknown item", "Ingest the records of these items: millrace ingest --items. The next run takes the rows then."),
    (r"event", "Name it under validate.events.map, or leave the rows out of the source."),
    (r" is (null|empty|blank)$", "Fill it in the source, or leave these rows out; they can't be trained on."),
    (r"longer than", "Cut it in the source, or raise validate.max_text_chars."),
    (r"shorter than", "Lengthen it in the source, or lower validate.min_text_chars."),
    (r"^label (below|above)", "Correct the label, or set validate.label_min and validate.label_max."),
    (r" (below|above) ", "Correct the number, or set validate.numeric_min and validate.numeric_max."),
    (r"is not a number$", "Export a plain number such as 43.49; millrace look shows the options for other forms."),
    (r"time is outside", "Correct the time, or ingest the row into its own span."),
)  # fmt: skip
OTHERWISE = "Correct the rows in the source, or the rule under validate: or heads: in the configuration."


def rows_html(store: Store, run_key: str) -> bytes | None:
    """Return the page as HTML; None if validate has not judged the run's rows. Raises as `read_run`."""
    run = read_run(Snapshot(store), run_key)
    validated = judged_rows(store, run)
    return html.render(rows_page(store, run, validated)) if validated is not None else None


def judged_rows(store: Store, run: Run) -> ValidateOutcome | None:
    """Return the findings of validate, even if they stopped the run. Raises StoreError: they are not readable."""
    made = run.outcome(Stage.validate)
    if isinstance(made, ValidateOutcome):
        return made
    attempts = run.stage(Stage.validate).attempts
    return read_data_failure(store, attempts[-1]) if attempts else None


def rows_page(store: Store, run: Run, validated: ValidateOutcome) -> Page:
    """Return the counts by reason, then a sample of the rows of each reason; a deleted folder is a sentence."""
    problems: list[str] = []
    bad = _read_rows(store, validated.quarantine, problems)
    waiting = _read_rows(store, validated.waiting, problems, waits=True)
    title = f"{run.span}: rows set apart"
    groups = [] if bad is None else [_reason(reason, rows, bad) for reason, rows in _counted(validated)]
    return Page(
        title=f"{title} (run {run.run_key})",
        workspace=store.uri,
        key=ROWS_PAGE.format(run=run.run_key),
        heading=title,
        summary=f"{count(validated.rows_quarantined)} of {plural(validated.rows_in, 'row')} were set apart.",
        about=(*([_bound(bad)] if bad is not None else []), *_ingested(run)),
        state=None,
        tiles=(
            Tile(
                "Set apart",
                Cell(count(validated.rows_quarantined)),
                share(validated.rows_quarantined / validated.rows_in if validated.rows_in else 0.0),
            ),
            Tile("Reasons", Cell(str(len(validated.reasons)))),
            *((Tile("Waiting for items", Cell(count(waiting.rows)), "looked up by each run"),) if waiting else ()),
        ),
        boxes=unreadable(problems),
        sections=(_reasons(run, validated), *groups, *_waiting(waiting)),
        near=(Cell("Report of the run", key=REPORT.key(run=run.run_key)), Cell("History", key=HISTORY_KEY)),
    )


def _read_rows(store: Store, key: str | None, problems: list[str], waits: bool = False) -> BadRows | None:
    if key is None:
        return None
    try:
        return read_waiting(store, key) if waits else read_bad_rows(store, key)
    except StoreError as error:
        problems.append(str(error))
        return None


def _bound(bad: BadRows) -> str:
    if not bad.looked_at:
        return "They are too many to be fetched; read the Parquet file itself."
    if bad.rows <= MOST_ROWS:
        return "All of them are below. Values are cut to 200 characters."
    looked = f", found among the first {LOOKED_AT:,}" if bad.rows > LOOKED_AT else ""
    return (
        f"{count(len(bad.sample))} of them are below{looked}: {EACH_REASON} or more for each reason. "
        "Values are cut to 200 characters."
    )


def _ingested(run: Run) -> tuple[str, ...]:
    """Return where the rows are as they were ingested; a row_id finds its row there, and in the source."""
    if run.plan is None:
        return ()
    others = len(run.plan.window) - 1
    more = f" and {plural(others, 'other folder')} of spans" if others > 0 else ""
    return (f"As they were ingested, by row_id, they are in {run.plan.span.prefix}{more}.",)


def _counted(validated: ValidateOutcome) -> list[tuple[str, int]]:
    return sorted(validated.reasons.items(), key=lambda item: (-item[1], item[0]))


def _reasons(run: Run, validated: ValidateOutcome) -> Section:
    rows = [
        (reason, count(rows), share(rows / max(validated.rows_in, 1)), way_out(reason))
        for reason, rows in _counted(validated)
    ]
    if not rows:
        return Section("By reason", ("No row was set apart.",), id="reasons")
    lines = (
        "A row with several reasons counts for each of them.",
        f"After a correction ingest {run.span} again as it was ingested, and add --replace; or --merge, if the file "
        "has the corrected rows alone.",
    )
    made = table("", ("~reason", ">rows", ">of all rows", "~way out"), rows)
    return Section("By reason", lines, id="reasons", tables=(made,))


def way_out(reason: str) -> str:
    """Return the advice for a reason."""
    return next((words for pattern, words in WAYS_OUT if re.search(pattern, reason)), OTHERWISE)


def _reason(reason: str, rows: int, bad: BadRows) -> Section:
    shown = [row for row in bad.sample if reason in row.reason.split(SEPARATOR)]
    short = f"{reason} ({count(rows)})"
    if not shown:
        return Section(short, ("None of them is in the sample.",), id=_id(reason))
    return Section(short, id=_id(reason), tables=(_table(shown, f"{len(shown)} of {plural(rows, 'row')}"),))


def _waiting(waiting: BadRows | None) -> tuple[Section, ...]:
    if waiting is None or not waiting.rows:
        return ()
    shown = waiting.sample[:EACH_REASON]
    lines = (
        f"{plural(waiting.rows, 'row')} of this span and of earlier ones, about items that no feed knows yet. Each run "
        "looks for them again. To bring them in: millrace ingest --items FILE, then the next run.",
    )
    made = (_table(shown, f"{len(shown)} of {plural(waiting.rows, 'row')}"),) if shown else ()
    return (Section("Waiting for their items", lines, id="waiting", tables=made),)


def _table(rows: Sequence[SampleRow], caption: str) -> Table:
    """Return the rows with the main columns of their own, and all others in the last one."""
    columns = [name for name in FIRST if any(name in row.values for row in rows)]
    many = len({row.span for row in rows}) > 1
    cells = [
        (
            *(_value(row.values.get(name, "")) for name in columns),
            *((row.span,) if many else ()),
            ", ".join(f"{name} {_value(value)}" for name, value in row.values.items() if name not in FIRST),
        )
        for row in rows
    ]
    names = [f"~{name}" if name in LONG else name for name in columns]
    return table(caption, (*names, *(("span",) if many else ()), "~other columns"), cells, folded=True)


def _value(words: str) -> str:
    return visible(" ".join(words.split()))


def _id(reason: str) -> str:
    return "reason-" + re.sub(r"\W+", "-", reason.lower()).strip("-")
