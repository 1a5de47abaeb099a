"""Validate: number of clean rows, reasons of rejects, and checks."""

from flows.presentation.model import Section, Table, table
from flows.presentation.stages import health
from flows.presentation.stages.columns import drift_figures
from flows.presentation.stages.facts import StageFacts
from flows.presentation.wording import count, share
from tasks.contracts.outcomes import ValidateOutcome
from tasks.foundation.nouns import plural


def section(facts: StageFacts) -> Section:
    """Return the rows by outcome, and the checks."""
    value: ValidateOutcome = facts.outcome
    warnings = sum(not check.passed for check in value.checks)
    all_passed = f"All {plural(len(value.checks), 'check')} passed."
    files = [(f"clean rows of {rows.span.name}", rows.prefix) for rows in value.rows]
    return Section(
        f"{count(value.rows_clean)} of {count(value.rows_in)} rows are clean",
        (
            f"{warnings} of {plural(len(value.checks), 'check')} gave a warning." if warnings else all_passed,
            *_texts(value),
        ),
        figures=tuple(drift_figures(value.drifts)),
        tables=(_rows(value), *_reasons(value), *_spans(value), *_sides(value), *_catalogue(value)),
        parts=health.checks_section(value.checks),
        files=(
            *files,
            *((f"profile of {span}", key) for span, key in value.profiles.items()),
            *((f"rows on neither side of {rows.span.name}", rows.sides) for rows in value.rows if rows.sides),
            *((("rows set apart", value.quarantine),) if value.quarantine else ()),
            *((("catalogue", value.catalogue.prefix),) if value.catalogue else ()),
        ),
    )


def _texts(value: ValidateOutcome) -> tuple[str, ...]:
    if not value.texts:
        return ()
    newest = value.texts[-1]
    of_feed = f"{plural(len(value.texts), 'span')} of the item feed; the newest is {newest.name} v{newest.version}"
    said = f"The texts of rows of ids alone come from {of_feed}."
    if not value.rows_late:
        return (said,)
    late = plural(value.rows_late, "row")
    return said, f"Since the feed knows their items now, {late} of earlier spans came in."


def _rows(value: ValidateOutcome) -> Table:
    part = share(value.rows_quarantined / value.rows_in if value.rows_in else 0.0)
    row = (count(value.rows_in), count(value.rows_clean), count(value.rows_quarantined), part)
    return table("", (">rows in", ">clean", ">set apart", ">share set apart"), [row])


def _reasons(value: ValidateOutcome) -> tuple[Table, ...]:
    if not value.reasons:
        return ()
    by_rows = sorted(value.reasons.items(), key=lambda item: (-item[1], item[0]))
    rows = [(reason, count(rows), share(rows / value.rows_in)) for reason, rows in by_rows]
    return (table("Why rows were set apart", ("reason", ">rows", ">of all rows"), rows),)


def _spans(value: ValidateOutcome) -> tuple[Table, ...]:
    if len(value.rows) < 2:
        return ()
    rows = [(f"{each.span.name} v{each.span.version}", count(each.rows)) for each in value.rows]
    return (table("Clean rows by span", ("span", ">rows"), rows),)


def _sides(value: ValidateOutcome) -> tuple[Table, ...]:
    if value.left_out_of_training is None or value.left_out_of_holdout is None:
        return ()
    columns = [">training rows like a held-out row", ">held-out rows like an earlier training row"]
    row = [count(value.left_out_of_training), count(value.left_out_of_holdout)]
    if value.left_out_as_golden is not None:
        columns.insert(1, ">of these: in the golden set")
        row.insert(1, count(value.left_out_as_golden))
    return (table("Clean rows left out, since they are like a row of the other side", columns, [row]),)


def _catalogue(value: ValidateOutcome) -> tuple[Table, ...]:
    if value.catalogue is None:
        return ()
    row = (count(value.catalogue.items), count(value.catalogue.partitions))
    return (table("The catalogue", (">live items", ">partitions"), [row]),)
