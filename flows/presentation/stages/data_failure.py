"""A window of rows that failed validation: the checks, reasons, and sample rows."""

from flows.presentation.model import Section, Table, table
from flows.presentation.stages import checks, drift
from flows.presentation.wording import count, share
from infra.store.base import Store
from infra.store.records import find_record
from tasks.contracts.outcomes import ValidateOutcome
from tasks.contracts.profiles import SampleRow
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import DATA_REPORT
from tasks.foundation.errors import FailureClass
from tasks.runs.ledger import LedgerRecord


def read(store: Store, record: LedgerRecord) -> ValidateOutcome | None:
    """Return validate's findings if a check stopped this attempt; None for any other end.

    Also None after a missing column, since nothing else was checked then.

    Raises:
        StoreError: the report can't be read; names the file.
    """
    if record.stage is not Stage.validate or record.failure is not FailureClass.DATA:
        return None
    return find_record(store, DATA_REPORT.of(record), ValidateOutcome)


def message(text: str, found: ValidateOutcome | None) -> str:
    """Return the message of a failure; only its first line if tables show the rest."""
    return text if found is None else text.partition("\n")[0].rstrip(":") + "; the checks say why."


def section(found: ValidateOutcome) -> Section:
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
        figures=tuple(drift.figures([each for each in found.drifts if each.psi > each.limit])),
        parts=checks.section(found.checks),
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
