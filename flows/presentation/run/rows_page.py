"""The page of the rows of a run that were set apart, by reason.

`millrace serve` makes it when it is asked for; it is never stored, so that deleted rows are gone.
"""

import re
from collections.abc import Sequence

from flows.presentation import html
from flows.presentation.model import HISTORY_KEY, Cell, Page, Section, Table, Tile, table, unreadable
from flows.presentation.run.data_page import ROWS_PAGE, judged_rows
from flows.presentation.wording import count, share, visible
from infra.store.base import Store
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.profiles import SEPARATOR, SampleRow
from tasks.contracts.workspace import REPORT
from tasks.foundation.errors import StoreError
from tasks.foundation.nouns import plural
from tasks.runs.bad_rows import EACH_REASON, LOOKED_AT, MOST_ROWS, BadRows, read_bad_rows, read_waiting
from tasks.runs.run import Run, read_run
from tasks.runs.snapshot import Snapshot

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
