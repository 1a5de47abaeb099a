"""The problems of a lineage's freshness, in sentences for the person on call, each with its remedy."""

import datetime as dt
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from pydantic import Field

from tasks.contracts.evaluation import FewRows
from tasks.contracts.runs import Hold, Release
from tasks.contracts.spans import after, first_day
from tasks.foundation.clock import old
from tasks.foundation.errors import POLICIES
from tasks.foundation.records import Record
from tasks.monitoring.deadlines import Clock
from tasks.monitoring.progress import CatalogueAge, SpanRow, State, Survey

Kind = Literal[
    "stale", "late", "will be late", "lost", "failed", "cancelled", "missed", "not arrived", "unreleased",
    "hole", "too late", "corrected", "skipped", "postponed", "catalogue stale", "held", "few rows",
]  # fmt: skip
_LIFT = "Lift it once what serves may change again: millrace hold --off"
_MOST = 240  # characters of a message
AGAIN = "The deployed watch starts it again, at most three times a day"

# State of the span that the vectors wait for -> reason, and remedy.
_WAITS_FOR = {
    "Absent": ("{span} has not arrived", "Once it has, its run starts by itself: millrace ingest"),
    "Arrived": ("the run over {span} is not due yet", "It starts by itself; at once by: millrace run --span {span}"),
    "Skipped": ("{span} is skipped", "Ask for a corrected version, then: millrace ingest"),
    "Postponed": ("{span} waits for the next span, by a decision", "To train it now: millrace run --span {span}"),
    "Missed": ("{span} was missed", "By hand: millrace run --span {span}"),
    "Running": ("the run over {span} is still going on", "Its report: millrace report --span {span}"),
    "Lost": ("the run over {span} was lost", "Go on with: millrace run --span {span}"),
    "Failed": ("the run over {span} failed", "Why it did: millrace report --span {span}"),
    "Cancelled": ("the run over {span} was cancelled", "Go on with: millrace run --span {span}"),
    "Unfinished": (
        "{span} was trained and neither released nor rejected",
        "Go on with: millrace run --span {span}",
    ),
    "Rejected": ("the model of {span} was rejected", "The verdicts: millrace report --span {span}"),
    "Held": ("the release of {span} is held", _LIFT),
    "Released": ("{span} was released, and then rolled back", "All releases: millrace releases"),
}


class Age(NamedTuple):
    """The age of the newest data in the current release; None before the first release."""

    release: Release | None
    hours: float | None
    target_hours: float

    @property
    def target(self) -> dt.timedelta:
        return dt.timedelta(hours=self.target_hours)

    @property
    def stale(self) -> bool:
        return self.hours is not None and self.hours > self.target_hours


class Waiting(NamedTuple):
    """The items that wait for a release, and the longest wait; None before the first release."""

    catalogue: CatalogueAge | None
    hours: float
    target_hours: float


class Problem(Record):
    """One problem. `urgent`: a person should act; else it is for information."""

    kind: Kind = Field(description="kind of problem")
    urgent: bool
    spans: tuple[str, ...] = Field(description="spans with the problem; empty: the whole lineage")
    sentence: str
    way_out: str


def find_problems(
    seen: Survey,
    age: Age,
    waiting: Waiting,
    rows: Sequence[SpanRow],
    clocks: Sequence[Clock],
    missed: Sequence[str],
    gaps: Sequence[str],
    catch_up: str | None,
    hold: Hold | None,
    few: Sequence[FewRows],
) -> list[Problem]:
    """Return all problems, the urgent ones first.

    Args:
        catch_up: the span that the watch starts a run for.
        few: open spans, and the newest, that have far fewer rows than usual.
    """
    again = {*missed, catch_up} if catch_up else set[str]()
    found = [
        *_of_the_release(seen, age, rows, hold),
        *_of_the_catalogue(waiting, hold),
        *_of_a_hold(hold),
        *(problem for clock in clocks if (problem := of_a_clock(clock, clock.span in again)) is not None),
        *_of_failures(rows, again),
        *_of_missed(rows, missed),
        *_of_gaps(seen, gaps),
        *_of_the_past(seen),
        *_of_skips(rows),
        *_of_waits(rows),
        *_of_few_rows(few),
    ]
    return sorted(found, key=lambda problem: not problem.urgent)


def held_up_by(rows: Sequence[SpanRow], missed: Sequence[str]) -> SpanRow | None:
    """Return the missed span that needs a person, because its run failed for a permanent reason or was cancelled."""
    for row in rows:
        if row.span in missed and not may_pass(row):
            return row
    return None


def may_pass(row: SpanRow) -> bool:
    """Return True if a plain restart of the span's run may succeed."""
    return row.failure is None or POLICIES[row.failure].passes


def together(spans: Iterable[str]) -> Iterator[tuple[str, ...]]:
    """Yield groups of spans that follow one another."""
    group: list[str] = []
    for span in sorted(spans, key=first_day):
        if group and after(group[-1]) != span:
            yield tuple(group)
            group = []
        group.append(span)
    if group:
        yield tuple(group)


def named(spans: Sequence[str]) -> str:
    """Format a group of spans, as in `2026-11-14` or `2026-11-14 to 2026-11-20 (7 spans)`."""
    return spans[0] if len(spans) == 1 else f"{spans[0]} to {spans[-1]} ({len(spans)} spans)"


def _of_a_hold(hold: Hold | None) -> Iterator[Problem]:
    if hold is not None:
        yield Problem(kind="held", urgent=False, spans=(), sentence=hold.sentence, way_out=_LIFT)


def _of_the_release(seen: Survey, age: Age, rows: Sequence[SpanRow], hold: Hold | None) -> Iterator[Problem]:
    if not seen.versions:
        yield _urgent("not arrived", (), "No span has ever arrived.", "millrace ingest")
    elif age.release is None and not seen.consumed:
        yield _urgent("unreleased", (), "Nothing was trained or released yet.", "millrace run")
    elif age.release is not None and age.hours is not None and age.stale:
        newest = age.release.span.name
        behind = max((newest, *seen.consumed), key=first_day)
        later = [row for row in rows if first_day(row.span) > first_day(newest)]
        later = [row for row in later if row.state != "Absent" or first_day(row.span) > first_day(behind)]
        why = "no later span is due"
        way_out = "These spans and this schedule can't keep freshness.target_hours."
        if later:
            why, way_out = (said.format(span=later[0].span) for said in _WAITS_FOR[_state_of_its_run(seen, later[0])])
        if hold is not None:
            why, way_out = "releases are held", _LIFT
        sentence = f"The newest data in the released vectors, {newest}, is {old(age.hours)} old because {why}"
        yield _urgent("stale", (newest,), f"{sentence}; the target is {old(age.target_hours)}.", way_out)


def _state_of_its_run(seen: Survey, row: SpanRow) -> State:
    """Return the state of a span, of a corrected one that of the run that trained the version before."""
    if row.state != "Corrected" or row.run_key is None:
        return row.state
    return seen.runs[row.run_key].state.value  # vectors are old because of that run, with or without a new version


def _of_the_catalogue(waiting: Waiting, hold: Hold | None) -> Iterator[Problem]:
    if waiting.catalogue is None or waiting.hours <= waiting.target_hours:
        return
    sources = [each.source for each in waiting.catalogue.waiting]
    more = f" and {len(sources) - 1} more" if len(sources) > 1 else ""
    sentence = (
        f"The catalogue of release {waiting.catalogue.release} lacks items that have waited {old(waiting.hours)}: "
        f"{sources[0]}{more}; the target is {old(waiting.target_hours)}."
    )
    way_out = "The deployed refresh takes them: look at its last run in the UI; by hand: millrace refresh"
    if hold is not None:
        way_out = f"Releases are held, so nothing is refreshed. {_LIFT}"
    yield _urgent("catalogue stale", (), sentence, way_out)


def of_a_clock(clock: Clock, starts_again: bool = False) -> Problem | None:
    """Return the problem of a late or lost run; None if it is on time."""
    run = f"The run over {clock.span} (attempt {clock.attempt})"
    look = clock.page or f"millrace report --run {clock.run_key}"
    again = f"Its stages that are done stay so; go on with: millrace run --span {clock.span}"
    if starts_again:
        again = f"{AGAIN}, and its stages that are done stay so; sooner: millrace run --span {clock.span}"
    deadline = _when(clock.deadline)
    blame = ""
    if clock.failure is not None:
        blame = f" Most of its time was lost to {clock.failure}: {POLICIES[clock.failure].meaning}."
    if clock.standing == "late":
        if clock.lost:
            how = "is past its deadline of {} and was lost: its process is gone."
        elif clock.ended_at:
            how = f"ended at {_when(clock.ended_at)}, after its deadline of {{}}."
        else:
            how = "is past its deadline of {}" + (
                f"; it should end at {_when(clock.expected_end)}." if clock.expected_end else "."
            )
        kind, sentence = "late", f"{run} {how.format(deadline)}{blame}"
    elif clock.lost:
        kind, sentence = "lost", f"{run} was lost: its process is gone and left no end on record."
    elif clock.standing == "will be late" and clock.expected_end:
        kind = "will be late"
        sentence = f"{run} should end at {_when(clock.expected_end)}, after its deadline of {deadline}.{blame}"
    else:
        return None
    way_out = again if clock.lost else f"See what it does: {look}"
    return _urgent(kind, (clock.span,), sentence, way_out)


def _of_failures(rows: Sequence[SpanRow], again: Container[str]) -> Iterator[Problem]:
    for row in rows:
        retry = f"millrace run --span {row.span}{f', or Retry on {row.page}' if row.page else ''}"
        if row.state == "Failed":
            message = row.message if len(row.message) <= _MOST else f"{row.message[: _MOST - 1]}…"
            failure = row.failure or "an unknown failure"
            meaning = f" ({POLICIES[row.failure].meaning})" if row.failure else ""
            sentence = f"The run over {row.span} failed with {failure}{meaning}: {message}"
            way_out = (
                f"{AGAIN}; sooner: {retry}" if row.span in again and may_pass(row) else f"Mend that, then: {retry}"
            )
            yield _urgent("failed", (row.span,), sentence, way_out)
        elif row.state == "Cancelled":
            sentence = f"The run over {row.span} was cancelled, and those after it wait for it."
            yield _known("cancelled", (row.span,), sentence, f"Go on with: {retry}")


def _of_missed(rows: Sequence[SpanRow], missed: Sequence[str]) -> Iterator[Problem]:
    reported = {row.span for row in rows if row.state in ("Failed", "Cancelled", "Lost")}
    first = held_up_by(rows, missed)
    for group in together(span for span in missed if span not in reported):
        have, them = ("has arrived and was", "it") if len(group) == 1 else ("have arrived and were", "them")
        by_hand = f"millrace run --span {group[0]}" + ", then millrace run for each that follows" * (len(group) > 1)
        way_out = f"The deployed watch starts a run for {them}; by hand: {by_hand}"
        if first is not None:
            way_out = f"The run over {first.span} comes first. Once that is done: {by_hand}"
        yield _urgent("missed", group, f"{named(group)} {have} missed: no run took {them}.", way_out)


def _of_gaps(seen: Survey, gaps: Sequence[str]) -> Iterator[Problem]:
    """Yield due spans that did not arrive, which stop the lineage, and older gaps, which do not."""
    if not gaps:
        return
    reached = seen.watermark or max(seen.versions, key=first_day)
    for group in together(gaps):
        if first_day(group[0]) > first_day(reached):
            sentence = f"{named(group)} {'is' if len(group) == 1 else 'are'} due and did not arrive."
            way_out = "Ask for the data where it comes from, then: millrace ingest. The runs then start by themselves."
            yield _urgent("not arrived", group, sentence, way_out)
        else:
            sentence = f"{named(group)} never arrived, though later spans did."
            way_out = f"If there was data: millrace ingest, then millrace backfill --from {group[0]} --to {reached}"
            yield _known("hole", group, sentence, way_out)


def _of_the_past(seen: Survey) -> Iterator[Problem]:
    """Yield spans that arrived or changed after the lineage had passed them."""
    if seen.watermark is None:
        return
    reached = first_day(seen.watermark)
    known = {span: version for span, version in seen.versions.items() if span not in seen.skipped}
    late = [span for span in known if span not in seen.consumed and first_day(span) < reached]
    corrected = [span for span, ref in seen.consumed.items() if known.get(span, 0) > ref.version]
    for group in together(late):
        sentence = f"{named(group)} arrived after later spans had been trained."
        yield _known("too late", group, sentence, _train_again(group[0], seen.watermark))
    for group in together(corrected):
        has, it = ("has", "it was") if len(group) == 1 else ("have", "they were")
        sentence = f"{named(group)} {has} a newer version since {it} trained, by a correction or an erasure."
        yield _known("corrected", group, sentence, _train_again(group[0], seen.watermark))


def _train_again(first: str, last: str) -> str:
    return f"millrace backfill --from {first} --to {last} --dry-run shows what that would take"


def _of_skips(rows: Sequence[SpanRow]) -> Iterator[Problem]:
    for row in rows:
        if row.state == "Skipped":
            sentence = f"{row.span} v{row.version} is skipped: {row.message}"
            yield _known("skipped", (row.span,), sentence, "A corrected version is not skipped: millrace ingest")


def _of_waits(rows: Sequence[SpanRow]) -> Iterator[Problem]:
    for row in rows:
        if row.state == "Postponed":
            sentence = f"{row.span} v{row.version} waits for the next span: {row.message}"
            yield _known("postponed", (row.span,), sentence, f"To train it now: millrace run --span {row.span}")


def _of_few_rows(few: Sequence[FewRows]) -> Iterator[Problem]:
    for each in few:
        way_out = "If its export is not whole: millrace ingest --merge with the rest, before its run"
        yield _known("few rows", (each.span,), f"{each.sentence}.", way_out)


def _urgent(kind: Kind, spans: tuple[str, ...], sentence: str, way_out: str) -> Problem:
    return Problem(kind=kind, urgent=True, spans=spans, sentence=sentence, way_out=way_out)


def _known(kind: Kind, spans: tuple[str, ...], sentence: str, way_out: str) -> Problem:
    return Problem(kind=kind, urgent=False, spans=spans, sentence=sentence, way_out=way_out)


def _when(moment: str) -> str:
    return f"{dt.datetime.fromisoformat(moment).astimezone(dt.UTC):%Y-%m-%d %H:%M} UTC"
