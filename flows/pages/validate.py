"""The page of validate: how many rows are clean, why the others are not, and what was checked."""

from __future__ import annotations

from flows.pages.account import checks_table, foot, head
from flows.pages.markdown import table
from infra.store import Store
from tasks.contracts import RunPlan, Stage, ValidateOutcome


def page(store: Store, plan: RunPlan, value: ValidateOutcome) -> str:
    """Markdown. Raises StoreError if the ledger is not readable."""
    warnings = sum(not check.passed for check in value.checks)
    told = f"{warnings} of {len(value.checks)} checks warn." if warnings else f"All {len(value.checks)} checks passed."
    share = value.rows_quarantined / value.rows_in if value.rows_in else 0.0
    places = {f"clean rows of {rows.span.name}": rows.prefix for rows in value.rows}
    if value.quarantine:
        places["rows set apart"] = value.quarantine
    lines = head(plan, f"{value.rows_clean:,} of {value.rows_in:,} rows are clean", told)
    lines += table(
        (">rows in", ">clean", ">set apart", ">share"),
        [(f"{value.rows_in:,}", f"{value.rows_clean:,}", f"{value.rows_quarantined:,}", f"{share:.2%}")],
    )
    if value.reasons:
        by_rows = sorted(value.reasons.items(), key=lambda item: (-item[1], item[0]))
        lines += ["## Why rows were set apart", ""]
        lines += table(("reason", ">rows"), [(reason, f"{rows:,}") for reason, rows in by_rows])
    if len(value.rows) > 1:
        lines += ["## Clean rows by span", ""]
        lines += table(("span", ">rows"), [(f"{r.span.name} v{r.span.version}", f"{r.rows:,}") for r in value.rows])
    lines += ["## Checks", "", *checks_table(value.checks), *foot(store, plan, Stage.validate, places)]
    return "\n".join(lines)
