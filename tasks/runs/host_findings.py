"""The findings of the health checks of an attempt whose hosts were refused; for people and the report.

A healthy attempt leaves no such file: its checks are in the stage's result.
"""

from collections.abc import Sequence
from typing import Literal

from infra.store.base import Store
from infra.store.records import find_record
from tasks.contracts.kinds import OfAttempt
from tasks.contracts.outcomes import Check
from tasks.contracts.workspace import FINDINGS
from tasks.foundation.records import Record
from tasks.runs.ledger import LedgerRecord


class Findings(Record):
    """`findings.json` of an attempt: all checks of all its workers, passed ones too."""

    version: Literal[1] = 1
    checks: tuple[Check, ...]


def read_findings(store: Store, work: OfAttempt) -> Findings | None:
    """Return the findings of an attempt; None if it was not refused.

    Raises:
        StoreError: the file is damaged; names it.
    """
    return find_record(store, FINDINGS.of(work), Findings)


def last_findings(store: Store, attempts: Sequence[LedgerRecord]) -> tuple[Check, ...]:
    """Return the checks of the last attempt that was refused; empty if none was. Raises as `read_findings`."""
    for record in sorted(attempts, key=lambda record: record.attempt, reverse=True):
        if (findings := read_findings(store, record)) is not None:
            return findings.checks
    return ()


def with_verdict(check: Check) -> str:
    """Return the sentence of a check, with the action that follows from it and the host."""
    if check.passed or check.action == "proceed":
        return check.sentence
    return f"{check.sentence} [{check.action}{f': {check.host}' if check.host else ''}]"
