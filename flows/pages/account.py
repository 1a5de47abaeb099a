"""What frames the page of a stage: whose it is, where its files lie, and what its attempts cost, failed ones too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flows.pages.links import place, report
from flows.pages.markdown import Markup, bold, code, table, text, wrapped
from infra.store import Store
from tasks import ledger
from tasks.contracts import Check, Phases, RunPlan, Stage, stage_prefix
from tasks.errors import POLICIES
from tasks.findings import read_findings, with_verdict
from tasks.ledger import LedgerRecord

_PHASES = tuple(Phases.model_fields)


def head(plan: RunPlan, title: str, sentence: str) -> list[str]:
    """The title of a page, what came of the stage in one sentence, and whose page it is."""
    whose = f"Span {bold(plan.span.name)} v{plan.span.version}, lineage {bold(plan.config.lineage)}"
    return [f"# {text(title)}", "", text(sentence), "", f"{whose}, run {code(plan.run_key)}. {report(plan)}", ""]


def foot(store: Store, plan: RunPlan, stage: Stage, places: Mapping[str, str]) -> list[str]:
    """Seconds and dollars of the stage's attempts, those that failed, and where things lie.

    Args:
        places: what lies there -> its key in the workspace.

    Raises:
        StoreError: a record of the ledger is not readable; names the file.
    """
    attempts = ledger.of_stage(store, plan.run_key, stage)
    files = {f"files of {stage}": stage_prefix(plan.run_key, stage), **places}
    return [
        *_account(attempts),
        *_failures(store, attempts),
        "## Where it lies",
        "",
        *table(("what", "where"), [(what, place(plan.workspace, key)) for what, key in files.items()]),
    ]


def checks_table(checks: Sequence[Check]) -> list[str]:
    """What was checked, those first that failed; with the machine where one is named."""
    hosts = any(check.host for check in checks)
    failed_first = sorted(checks, key=lambda check: (check.passed, check.severity != "critical"))
    return table(
        ("check", *(["host"] if hosts else []), "", "what was found"),
        [(c.name, *([c.host or "all"] if hosts else []), judged(c), with_verdict(c)) for c in failed_first],
    )


def judged(check: Check) -> str:
    """A verdict in one word; what failed stands out."""
    if check.passed:
        return "passed"
    return bold("FAILED") if check.severity == "critical" else bold("warning")


def seconds(value: float) -> str:
    return f"{value:,.1f}"


def dollars(value: float) -> str:
    """With cents; what is less than a dollar with as many digits as it takes to see it."""
    return f"${value:.2f}" if value == 0 or value >= 0.1 else f"${value:.2g}"


def _account(attempts: Sequence[LedgerRecord]) -> list[str]:
    """One line for each attempt, and their sum."""
    met = [phase for phase in _PHASES if any(getattr(record.seconds, phase) for record in attempts)]
    rows = [
        (
            str(record.attempt),
            record.failure.value if record.failure else "done" if record.ended_at else "no end on record",
            *(seconds(getattr(record.seconds, phase)) for phase in met),
            seconds(record.wall_seconds),
            dollars(record.cost),
        )
        for record in attempts
    ]
    if len(attempts) > 1:
        sums = (seconds(sum(getattr(record.seconds, phase) for record in attempts)) for phase in met)
        whole = seconds(sum(record.wall_seconds for record in attempts))
        rows.append(("all", "", *sums, whole, dollars(sum(record.cost for record in attempts))))
    columns = (">attempt", "ended as", *(f">{phase}" for phase in met), ">seconds", ">cost")
    return ["## Seconds and dollars", "", *table(columns, rows)]


def _failures(store: Store, attempts: Sequence[LedgerRecord]) -> list[str]:
    """Nothing where no attempt failed; of machines that health refused also what it found."""
    failed = [record for record in attempts if record.failure is not None]
    if not failed:
        return []
    rows = [
        (str(record.attempt), bold(record.failure), _told(record.message, POLICIES[record.failure].meaning))
        for record in failed
        if record.failure is not None
    ]
    lines = ["## Failed attempts", "", *table((">attempt", "class", "message, and what its class means"), rows)]
    for record in failed:
        found = read_findings(store, f"{stage_prefix(record.run_key, record.stage)}/attempt-{record.attempt}")
        if found is not None:
            lines += [f"What attempt {record.attempt} found:", "", *checks_table(found.checks)]
    return lines


def _told(message: str, meaning: str) -> Markup:
    return Markup(f"{wrapped(message)}<br>*{text(meaning)}*")
