"""What the health checks of an attempt found when they refused its machines; for people and the report.

A healthy attempt leaves no such file: its checks are in the stage's result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import ValidationError

from infra.store import Store
from tasks.contracts import Check, stage_prefix
from tasks.errors import StoreError
from tasks.ledger import LedgerRecord
from tasks.records import Record


class Findings(Record):
    """`findings.json` of an attempt: all checks of all its workers, also those that passed."""

    version: Literal[1] = 1
    checks: tuple[Check, ...]


def findings_key(attempt_prefix: str) -> str:
    return f"{attempt_prefix}/findings.json"


def read_findings(store: Store, attempt_prefix: str) -> Findings | None:
    """None where the attempt was not refused.

    Raises:
        StoreError: the file is damaged; names it.
    """
    key = findings_key(attempt_prefix)
    try:
        return Findings.model_validate_json(store.read(key))
    except FileNotFoundError:
        return None
    except ValidationError as error:
        raise StoreError(f"{store.uri}/{key} holds no findings: {error.errors()[0]['msg']}") from error


def last_findings(store: Store, attempts: Sequence[LedgerRecord]) -> tuple[Check, ...]:
    """Of the latest that was refused; empty if none was. Raises StoreError for a damaged file."""
    for record in sorted(attempts, key=lambda record: record.attempt, reverse=True):
        prefix = f"{stage_prefix(record.run_key, record.stage)}/attempt-{record.attempt}"
        if (findings := read_findings(store, prefix)) is not None:
            return findings.checks
    return ()


def with_verdict(check: Check) -> str:
    """The sentence of a check and, where something follows from it, what and for which machine."""
    if check.passed or check.action == "proceed":
        return check.sentence
    return f"{check.sentence} [{check.action}{f': {check.host}' if check.host else ''}]"
