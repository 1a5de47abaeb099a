"""The page of a run's data: its columns and their drift from the spans before, in counts and shares, without rows."""

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
from flows.presentation.wording import NONE, count, number, share
from infra.store.base import Store
from infra.store.records import find_record
from tasks.contracts.outcomes import Check, ValidateOutcome
from tasks.contracts.profiles import ColumnDrift, ColumnProfile, SpanProfile
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import DATA_PAGE, REPORT, ROWS
from tasks.foundation.errors import StoreError
from tasks.foundation.nouns import plural
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


def judged_rows(store: Store, run: Run) -> ValidateOutcome | None:
    """Return the findings of validate, even if they stopped the run. Raises StoreError: they are not readable."""
    made = run.outcome(Stage.validate)
    if isinstance(made, ValidateOutcome):
        return made
    attempts = run.stage(Stage.validate).attempts
    return read_data_failure(store, attempts[-1]) if attempts else None
