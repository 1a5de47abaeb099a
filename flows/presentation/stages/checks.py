"""The table of checks, as validate and health make them."""

from collections.abc import Sequence

from flows.presentation.model import Section, passed, table
from flows.presentation.wording import plural
from tasks.contracts.outcomes import Check
from tasks.runs.host_findings import with_verdict


def section(checks: Sequence[Check], title: str = "Checks") -> tuple[Section, ...]:
    """Return the checks, failed ones first, with a column of hosts if a check names one; empty without checks."""
    if not checks:
        return ()
    hosts = any(check.host for check in checks)
    failed_first = sorted(checks, key=lambda check: (check.passed, check.severity != "critical"))
    rows = [
        (c.name, *((c.host or "all",) if hosts else ()), passed(c.passed, c.severity), with_verdict(c))
        for c in failed_first
    ]
    columns = ("check", *(("host",) if hosts else ()), "result", "~what was found")
    failed = sum(not check.passed for check in checks)
    tables = (
        *((table("", columns, rows[:failed]),) if failed else ()),
        *(
            (table(f"{plural(len(rows) - failed, 'check')} passed", columns, rows[failed:], folded=True),)
            * (failed < len(rows))
        ),
    )
    return (Section(title, tables=tables),)
