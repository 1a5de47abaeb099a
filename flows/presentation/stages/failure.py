"""A failure of any stage: its class, its message, its meaning and its remedy.

If a window of rows failed validation: the checks, reasons, and sample rows.
"""

from flows.presentation.model import Command, Section, Table, facts, table
from flows.presentation.stages import health
from flows.presentation.stages.columns import drift_figures
from flows.presentation.wording import count, sentence, share
from infra.store.base import Store
from infra.store.records import find_record
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.profiles import SampleRow
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import DATA_REPORT
from tasks.foundation.errors import POLICIES, RUNBOOK, FailureClass
from tasks.runs.ledger import LedgerRecord


def section(failure: FailureClass, message: str, stage: str, command: str = "") -> Section:
    """Return the failure and its remedy.

    Args:
        stage: the failed stage; empty if no stage had begun.
        command: command that continues the run; empty if unknown.
    """
    policy = POLICIES[failure]
    cancelled = failure is FailureClass.CANCELLED
    where = stage.capitalize() or "The run"
    again = "Retry on the flow run's page, or repeat the command that began it; finished stages are not repeated."
    if cancelled:
        retries = "Nothing has to be repaired."
    elif policy.transient:
        retries = "It usually passes by itself, and is tried again as often as retry.attempts allows."
    else:
        retries = "It would fail again until its cause is repaired, so it is not tried again."
    rows = (
        ("class", f"{failure}, exit code {policy.exit_code}"),
        ("retries", retries),
        ("continue", again),
        ("more", f"{RUNBOOK}, {failure}"),
    )
    return Section(
        f"{where} was cancelled" if cancelled else f"{where} failed with {failure}",
        (sentence(policy.meaning),),
        id="failure",
        mood="going" if cancelled else "bad",
        quote=message,
        tables=(facts(rows),),
        commands=(Command("To continue from here, run the span again:", tuple(command.splitlines())),)
        if command
        else (),
    )


def read_data_failure(store: Store, record: LedgerRecord) -> ValidateOutcome | None:
    """Return validate's findings if a check stopped this attempt; None for any other end.

    Also None after a missing column, since nothing else was checked then.

    Raises:
        StoreError: the report can't be read; names the file.
    """
    if record.stage is not Stage.validate or record.failure is not FailureClass.DATA:
        return None
    return find_record(store, DATA_REPORT.of(record), ValidateOutcome)


def data_message(text: str, found: ValidateOutcome | None) -> str:
    """Return the message of a failure; only its first line if tables show the rest."""
    return text if found is None else text.partition("\n")[0].rstrip(":") + "; the checks say why."


def data_section(found: ValidateOutcome) -> Section:
    """Return the failed checks first, the reasons, the rows, and the columns that moved most."""
    reasons = [
        (reason, count(rows), share(rows / max(found.rows_in, 1)))
        for reason, rows in sorted(found.reasons.items(), key=lambda item: (-item[1], item[0]))
    ]
    why = (table("Why rows were set apart", ("reason", ">rows", ">of all rows"), reasons),) if reasons else ()
    return Section(
        f"{count(found.rows_clean)} of {count(found.rows_in)} rows are clean",
        id="data",
        tables=(*why, *_samples(found.samples)),
        figures=tuple(drift_figures([each for each in found.drifts if each.psi > each.limit])),
        parts=health.checks_section(found.checks),
        files=(("rows set apart", found.quarantine),) if found.quarantine else (),
    )


def _samples(samples: tuple[SampleRow, ...]) -> tuple[Table, ...]:
    if not samples:
        return ()
    rows = [
        (sample.reason, sample.span, ", ".join(f"{name}: {value or 'null'}" for name, value in sample.values.items()))
        for sample in samples
    ]
    return (table("Some of the rows that were set apart", ("reason", "span", "~the row"), rows),)
