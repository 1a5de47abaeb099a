"""The ledger as sections: outcomes of runs and attempts, their seconds by activity, and the trend by week."""

from flows.presentation.costs import priced
from flows.presentation.model import Cell, Section, Table, ended_as, facts, state, table
from flows.presentation.run import account
from flows.presentation.wording import NONE, dollars, duration, moment, share
from tasks.contracts.outcomes import Phases
from tasks.foundation.nouns import plural
from tasks.monitoring.ledger_report import LedgerReport
from tasks.runs.sums import Sums

MOST_WEEKS = 26
MOST_RUNS = 30


def whole_ledger(report: LedgerReport) -> tuple[Section, ...]:
    """Return the ledger of all runs: sums, phases, weeks and runs, the newest first."""
    newest = list(reversed(report.runs))[:MOST_RUNS]
    rows = [
        (
            one.span or one.run_key,
            state(one.state, ended_as(one.state, one.release, one.failure)),
            _failed(one),
            *_spent(one),
        )
        for one in newest
    ]
    columns = ("span", "state", ">failed", *_SPENT)
    cut = f"The newest {MOST_RUNS} of {len(report.runs)} runs." if len(report.runs) > MOST_RUNS else ""
    runs = Section("Runs", (cut,) if cut else (), id="ledger-runs", tables=(table("", columns, rows),))
    return (ledger_section(report), runs) if rows else (ledger_section(report),)


def ledger_section(report: LedgerReport) -> Section:
    """Return the sums over all runs, the seconds by phase, and the weeks."""
    since = f" that began since {moment(report.since)}" if report.since else ""
    lines = (f"{plural(len(report.runs), 'run')}{since}.",)
    tables = [facts(_facts(report.whole)), *_phases(report.whole)]
    if len(report.weeks) > 1:
        newest = list(reversed(report.weeks))[:MOST_WEEKS]
        rows = [
            (
                one.week,
                f"{one.runs_succeeded} of {one.runs_over}",
                duration(one.seconds.total),
                _failed(one),
                *_spent(one),
            )
            for one in newest
        ]
        columns = ("week", ">runs", ">time", ">failed", *_SPENT)
        tables.append(table("By the week in which the runs began", columns, rows))
    if report.other is not None:
        rest = f"{plural(report.other.attempts, 'attempt')}, {duration(report.other.seconds.paid)} on machines"
        what = "Refreshes, publications, comparisons and imports, which are not in the sums above"
        tables.append(
            facts([("other work", rest), ("their cost", priced(report.other.cost, report.other.charges))], what)
        )
    return Section("Ledger", lines, id="ledger", tables=tuple(tables))


def run_ledger(report: LedgerReport) -> tuple[Section, ...]:
    """Return the ledger of one run: its sums, its seconds by phase, and each of its attempts."""
    run = report.runs[0]
    of = state(run.state, ended_as(run.state, run.release, run.failure))
    rows: list[tuple[str, Cell | str]] = [("state", of), ("began", moment(run.began_at)), *_facts(run)[1:]]
    title = f"Run {run.run_key} over {run.span}"
    return (Section(title, id="ledger", tables=(facts(rows), *_phases(run))), *account.attempts(report.attempts))


_SPENT = (">goodput", ">lost", ">recovery", ">cost")


def _spent(sums: Sums) -> tuple[str, ...]:
    lost = duration(sums.seconds.lost) if sums.seconds.lost else NONE
    return share(sums.goodput), lost, duration(sums.mean_seconds_to_recover), dollars(sums.cost)


def _failed(sums: Sums) -> str:
    """Return the number of failed attempts, as `2 of 7`."""
    return f"{sums.attempts - sums.succeeded} of {sums.attempts}"


def _facts(sums: Sums) -> list[tuple[str, Cell | str]]:
    classes = ", ".join(f"{count} {failure}" for failure, count in sums.attempts_by_class.items())
    tried = f"{sums.succeeded} of {sums.attempts}; {share(sums.success_rate)}"
    recovered = f"{duration(sums.mean_seconds_to_recover)} over {plural(sums.recoveries, 'outage')}"
    still = f"{plural(sums.unrecovered, 'outage')} not over" if sums.unrecovered else ""
    return [
        ("runs that came to a result", f"{sums.runs_succeeded} of {sums.runs_over}; {share(sums.run_success_rate)}"),
        ("attempts that succeeded", tried + (f"; failed: {classes}" if classes else "")),
        ("goodput", f"{share(sums.goodput)} of {duration(sums.seconds.paid)} on machines"),
        ("mean time to recover", "; ".join(filter(None, (recovered if sums.recoveries else "", still)))),
        ("cost", priced(sums.cost, sums.charges)),
        ("at the prices given", priced(sums.repriced, sums.repriced_charges) if sums.repriced_charges else ""),
    ]


def _phases(sums: Sums) -> tuple[Table, ...]:
    if not sums.seconds.total:
        return ()
    rows = []
    for phase, field in Phases.model_fields.items():
        spent = getattr(sums.seconds, phase)
        paid = NONE if phase == "queued" or not sums.seconds.paid else share(spent / sums.seconds.paid)
        rows.append((phase, duration(spent) if spent else NONE, paid, field.description or ""))
    return (table("Where the seconds went", ("phase", ">time", ">of paid", "~meaning"), rows),)
