"""The account of attempts, of one stage or of a whole run: seconds, dollars, machines, and failures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from configs.prices import basis_of
from flows.presentation.figures import PHASES, legend
from flows.presentation.model import Cell, Figure, Section, table
from flows.presentation.stages import health
from flows.presentation.stages.failure import data_message, data_section, read_data_failure
from flows.presentation.wording import NONE, dollars, duration, moment, seconds, sentence, share
from infra.store.base import Store
from tasks.contracts.outcomes import StageResult
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import LEDGER
from tasks.foundation.errors import POLICIES
from tasks.foundation.nouns import plural
from tasks.runs.host_records import read_findings
from tasks.runs.ledger import LedgerRecord
from tasks.runs.sums import sums_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

MOST_BARS = 30  # in the figure; the table has all attempts


def attempts(records: Sequence[LedgerRecord]) -> tuple[Section, ...]:
    """Return a row for each attempt and their sum, and where each one ran; nothing without attempts."""
    if not records:
        return ()
    met = [phase for phase in PHASES if any(getattr(record.seconds, phase) for record in records)]
    rows: list[tuple[Cell | str, ...]] = [
        (
            Cell(_name(record), key=LEDGER.of(record)),
            _ended(record),
            *(seconds(getattr(record.seconds, phase)) for phase in met),
            seconds(record.wall_seconds),
            dollars(record.cost),
        )
        for record in records
    ]
    if len(records) > 1:
        sums = (seconds(sum(getattr(record.seconds, phase) for record in records)) for phase in met)
        whole = seconds(sum(record.wall_seconds for record in records))
        rows.append(("all", "", *sums, whole, dollars(sums_of(records).cost)))
    machines = [
        (_name(record), moment(record.started_at), str(record.workers), ", ".join(record.hosts) or record.job or NONE)
        for record in records
    ]
    failed = sum(record.failure is not None for record in records)
    columns = ("attempt", "ended as", *(f">{phase}" for phase in met), ">seconds", ">cost")
    return (
        Section(
            "Seconds and dollars",
            tuple(
                filter(
                    None,
                    (f"{plural(len(records), 'attempt')}, {failed or 'none'} failed.", _prices(records)),
                )
            ),
            id="attempts",
            short="Attempts",
            tables=(
                table("", columns, rows),
                table("Where they ran", ("attempt", "began", ">workers", "~machines"), machines),
            ),
        ),
    )


def failures(store: Store, records: Sequence[LedgerRecord]) -> tuple[Section, ...]:
    """Return class and message of the attempts that failed, and the checks of machines or rows that stopped them.

    Raises:
        StoreError: the findings of an attempt are not readable; names the file.
    """
    failed = [(record, record.failure) for record in records if record.failure is not None]
    if not failed:
        return ()
    unfit = [read_data_failure(store, record) for record, _ in failed]
    rows = [
        (
            _name(record),
            Cell(failure.value, "!", "bad"),
            f"{data_message(record.message, data)} ({POLICIES[failure].meaning})",
        )
        for (record, failure), data in zip(failed, unfit, strict=True)
    ]
    found = [(_name(record), read_findings(store, record)) for record, _ in failed]
    parts = tuple(
        part for name, each in found if each for part in health.checks_section(each.checks, f"Found by {name}")
    )
    last = [data_section(data) for data in unfit[-1:] if data]  # earlier attempts repeat the same findings
    columns = ("attempt", "class", "~message, and what its class means")
    return (Section("Failed attempts", id="failures", tables=(table("", columns, rows),), parts=(*parts, *last)),)


def by_stage(records: Sequence[LedgerRecord], results: Mapping[Stage, StageResult]) -> tuple[Section, ...]:
    """Return the time of a run by stage and phase; nothing without attempts."""
    if not records:
        return ()
    rows = []
    for stage in dict.fromkeys(record.stage for record in records):
        own = [record for record in records if record.stage is stage]
        state = Cell("done", "✓", "good") if stage in results else _ended(own[-1])
        summed = sums_of(own)
        phases = (seconds(getattr(summed.seconds, phase)) for phase in PHASES)
        took = duration(sum(record.wall_seconds for record in own))
        rows.append((stage.value, state, str(len(own)), *phases, took, dollars(summed.cost)))
    columns = ("stage", "state", ">attempts", *(f">{phase}" for phase in PHASES), ">in all", ">cost")
    summed = sums_of(records)
    return (
        Section(
            "Time by stage",
            (f"Goodput {share(summed.goodput)}: the productive share of {duration(summed.seconds.paid)} on machines.",),
            id="time",
            short="Time",
            figures=(_figure(records),),
            tables=(table("Seconds of all attempts", columns, rows),),
        ),
    )


def _figure(records: Sequence[LedgerRecord]) -> Figure:
    """Return one bar for each attempt, in the order in which they started, divided into phases."""
    shown = records[-MOST_BARS:]
    names = [f"{_name(each)} {_took(each)}" for each in shown]

    def draw(canvas: Canvas) -> None:
        axes, positions = canvas.add_subplot(), range(len(shown))
        ends = [0.0] * len(shown)
        for phase, style in PHASES.items():
            parts = [getattr(each.seconds, phase) / 60 for each in shown]
            if any(parts):
                axes.barh(
                    positions, parts, left=ends, height=0.72, edgecolor="white", linewidth=0, label=phase, **style
                )
                ends = [end + part for end, part in zip(ends, parts, strict=True)]
        longest = max(ends, default=0.0)
        for position, (each, end) in enumerate(zip(shown, ends, strict=True)):
            axes.text(end + longest * 0.012, position, _took(each), va="center", fontsize=8.5)
        axes.set_yticks(positions, [_name(each) for each in shown])
        axes.invert_yaxis()
        axes.set_xlim(0, (longest or 1.0) * 1.34)
        axes.set_xlabel("minutes")
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        if any(ends):
            legend(axes, columns=3)

    cut = f" The newest {MOST_BARS} of {len(records)} attempts." if len(records) > len(shown) else ""
    alt = f"Bar chart of the attempts' wall time: {'; '.join(names)}."
    return Figure(
        "Where the time went", sentence("each attempt, cut into phases") + cut, alt, draw, 70 + 24 * len(shown)
    )


def _prices(records: Sequence[LedgerRecord]) -> str:
    """Return basis and dates of the prices, or the machines without a price, as a sentence."""
    basis = basis_of(record.charge for record in records)
    return f"Cost: {basis}." if basis else ""


def _took(record: LedgerRecord) -> str:
    """Return the time of an attempt, and how it ended unless it succeeded."""
    end = f" {record.failure.value}" if record.failure else "" if record.ended_at else " no end yet"
    return f"{duration(record.wall_seconds)}{end}"


def _ended(record: LedgerRecord) -> Cell:
    if record.failure is not None:
        return Cell(record.failure.value, "!", "bad")
    return Cell("done", "✓", "good") if record.ended_at else Cell("no end on record", "▶", "going")


def _name(record: LedgerRecord) -> str:
    return f"{record.stage.value} {record.attempt}"
