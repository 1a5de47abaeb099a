"""How far each span has come along a lineage, and when it passed each stage.

A year of daily spans is told from one listing and the records of the newest ones; what lies further back is in the
pages of the pipeline's history.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple, TypeVar

from pydantic import Field, ValidationError

from infra.manifest import MANIFEST, Manifest
from infra.store import Store
from tasks import branches, catalog, lineage
from tasks.contracts import SpanRef, Stage
from tasks.errors import FailureClass
from tasks.gates import refused
from tasks.invocations import Invocation
from tasks.ledger import LedgerRecord
from tasks.records import Record
from tasks.results import Judgement, judgement_key
from tasks.spans import after, first_day, last_day

ROWS = 60  # of the newest spans: two months of days, more than a year of weeks
READERS = 16  # objects that are read at once, which counts where the workspace is a bucket
SPAN_STAGES = (Stage.validate, Stage.train, Stage.evaluate, Stage.infer, Stage.release)

State = Literal[
    "Absent", "Arrived", "Missed", "Running", "Lost", "Failed", "Cancelled", "Unfinished", "Rejected", "Released"
]
R = TypeVar("R", bound=Record)

_ATTEMPT = re.compile(r"attempt-(\d+)/ledger\.json")
_INVOCATION = re.compile(r"invocations/(\d+)\.json")


class SpanRow(Record):
    """One span. Times are ISO 8601 in UTC; null: it has not come there, or nobody wrote it down then."""

    span: str
    state: State
    version: int | None = Field(description="the newest that has arrived; null: none has")
    trained_version: int | None = Field(description="the one in the lineage's weights")
    ends_at: str = Field(description="when the span is over, in UTC")
    arrived_at: str | None = Field(description="of the newest version")
    validated_at: str | None
    trained_at: str | None
    evaluated_at: str | None
    embedded_at: str | None
    released_at: str | None
    run_key: str | None = Field(description="the run that trained it, or else that was last asked for")
    failure: FailureClass | None = Field(description="of a run that failed or was cancelled")
    message: str
    page: str = Field(description="the page of the flow run that was last asked for; empty: none is known")


class Survey(NamedTuple):
    """What the workspace tells about a lineage: by span or run key, all in the order of the calendar or of begins."""

    lineage: str
    continues: str  # the branch that runs of the lineage go on from; else the lineage itself
    versions: Mapping[str, int]  # the newest of each span that has arrived
    consumed: Mapping[str, SpanRef]  # what the weights have seen
    trained_by: Mapping[str, str]  # span -> key of the run
    keys: Mapping[str, Sequence[str]]  # run key -> what lies in its folder, named from there
    invocations: Sequence[Invocation]  # the last of each run of the lineage that was looked at
    calendar: Sequence[str]  # all spans from the first that arrived to the last that did or is due

    @property
    def newest(self) -> Sequence[str]:
        """Those that rows are told of."""
        return self.calendar[-ROWS:]

    @property
    def watermark(self) -> str | None:
        return max(self.consumed, key=first_day, default=None)

    def is_released(self, run_key: str) -> bool:
        return f"{Stage.release}/result.json" in self.keys.get(run_key, ())


def span_end(span: str) -> dt.datetime:
    """The moment at which a span is over, in UTC, by which ingest cuts them."""
    return dt.datetime.combine(last_day(span) + dt.timedelta(days=1), dt.time(), dt.UTC)


def survey(store: Store, name: str, due: str | None) -> Survey:
    """What there is to know of a lineage; `due` is the last span that should have arrived, None where none can be.

    Raises:
        ConfigError: a folder below spans/ is not named like a span.
        StoreError: the lineage's head is not readable.
    """
    continues = branches.active(store, name)
    versions = {ref.name: ref.version for ref in catalog.list_spans(store)}
    head = lineage.head(store, continues)
    consumed = head[1].consumed if head else ()
    trained_by = {rows.span.name: rows.prefix.split("/")[1] for rows in consumed}
    found = Survey(
        lineage=name,
        continues=continues,
        versions=versions,
        consumed={rows.span.name: rows.span for rows in consumed},
        trained_by=trained_by,
        keys=_by_run(store.list("runs")),
        invocations=(),
        calendar=_calendar(list(versions), due),
    )
    return found._replace(invocations=_invocations(store, found))


def span_rows(store: Store, seen: Survey, missed: Sequence[str], working: bool) -> list[SpanRow]:
    """A row for each of the newest spans, oldest first.

    Args:
        working: whether somebody holds the lineage; else an invocation without an end is lost.
    """
    by_run = {one.run_key: one for one in seen.invocations}
    by_span = {one.span: one for one in seen.invocations}  # of several the one that began last
    runs: dict[str, str | None] = {}
    for span in seen.newest:
        asked = by_span.get(span)
        runs[span] = seen.trained_by.get(span) or (asked.run_key if asked else None)
    manifests = {span: f"spans/{span}/v{seen.versions[span]}/{MANIFEST}" for span in runs if span in seen.versions}
    records = {key: _last_ledgers(seen, key) for key in runs.values() if key}
    judgements = {key: judgement_key(key) for key in records if not seen.is_released(key)}
    wanted = [*manifests.values(), *judgements.values(), *(key for each in records.values() for key in each.values())]
    held = fetch(store, list(dict.fromkeys(wanted)))
    rows = []
    for span, run_key in runs.items():
        one = by_run.get(run_key or "")
        judged = parsed(held, judgements.get(run_key or ""), Judgement)
        manifest = parsed(held, manifests.get(span), Manifest)
        state = _state(seen, span, run_key, one, judged, working)
        ended = {stage: _ended(held, key) for stage, key in records.get(run_key or "", {}).items()}
        failed = one if state in ("Failed", "Cancelled") else None
        rows.append(
            SpanRow(
                span=span,
                state="Missed" if state == "Arrived" and span in missed else state,
                version=seen.versions.get(span),
                trained_version=seen.consumed[span].version if span in seen.consumed else None,
                ends_at=span_end(span).isoformat(timespec="seconds"),
                arrived_at=manifest.facts.get("ingested_at") if manifest else None,
                validated_at=ended.get(Stage.validate),
                trained_at=ended.get(Stage.train),
                evaluated_at=ended.get(Stage.evaluate),
                embedded_at=ended.get(Stage.infer),
                released_at=ended.get(Stage.release),
                run_key=run_key,
                failure=failed.failure if failed else None,
                message=failed.message if failed else "",
                page=one.page if one else "",
            )
        )
    return rows


def fetch(store: Store, keys: Sequence[str]) -> dict[str, bytes]:
    """What lies under the keys, many at once, without those that are gone."""

    def read(key: str) -> bytes | None:
        try:
            return store.read(key)
        except FileNotFoundError:
            return None

    with ThreadPoolExecutor(READERS) as readers:
        return {key: data for key, data in zip(keys, readers.map(read, keys), strict=True) if data is not None}


def parsed(held: Mapping[str, bytes], key: str | None, kind: type[R]) -> R | None:
    """A record among those that were fetched; None also where it can't be read: `millrace report` complains of it."""
    if key is None or key not in held:
        return None
    try:
        return kind.model_validate_json(held[key])
    except ValidationError:
        return None


def _calendar(arrived: Sequence[str], due: str | None) -> list[str]:
    """All spans from the first that arrived to the last that did or is due; none where none has arrived."""
    calendar = list(arrived[:1])
    last = max(first_day(span) for span in (*arrived[-1:], due) if span) if arrived else dt.date.min
    while calendar and first_day(calendar[-1]) < last:
        calendar.append(after(calendar[-1]))
    return calendar


def _by_run(keys: Iterable[str]) -> dict[str, list[str]]:
    runs: dict[str, list[str]] = {}
    for key in keys:
        _, run_key, *below = key.split("/", 2)
        runs.setdefault(run_key, []).extend(below)
    return runs


def _invocations(store: Store, seen: Survey) -> list[Invocation]:
    """Of each run the last one, by begin. Runs of long ago that ended in a release are left alone."""
    newest = {seen.trained_by.get(span) for span in seen.newest}
    settled = {key for key in seen.trained_by.values() if key not in newest and seen.is_released(key)}
    wanted = []
    for run_key, held in seen.keys.items():
        numbers = [int(found[1]) for name in held if (found := _INVOCATION.fullmatch(name))]
        if numbers and run_key not in settled:
            wanted.append(f"runs/{run_key}/invocations/{max(numbers)}.json")
    held = fetch(store, wanted)
    known = [one for key in held if (one := parsed(held, key, Invocation)) is not None]
    ours = {seen.lineage, seen.continues}
    trained = set(seen.trained_by.values())
    return sorted((one for one in known if one.lineage in ours or one.run_key in trained), key=lambda one: one.began_at)


def _last_ledgers(seen: Survey, run_key: str) -> dict[Stage, str]:
    """The record of the last attempt of each stage that is done, which is the one that did it."""
    found: dict[Stage, str] = {}
    for stage in SPAN_STAGES:
        held = [name.removeprefix(f"{stage}/") for name in seen.keys.get(run_key, ()) if name.startswith(f"{stage}/")]
        numbers = [int(one[1]) for name in held if (one := _ATTEMPT.fullmatch(name))]
        if "result.json" in held and numbers:
            found[stage] = f"runs/{run_key}/{stage}/attempt-{max(numbers)}/ledger.json"
    return found


def _ended(held: Mapping[str, bytes], key: str) -> str | None:
    record = parsed(held, key, LedgerRecord)
    return record.ended_at if record is not None and record.failure is None else None


def _state(
    seen: Survey, span: str, run_key: str | None, one: Invocation | None, judged: Judgement | None, working: bool
) -> State:
    if span not in seen.versions:
        return "Absent"
    if run_key is None:
        return "Arrived"
    if seen.is_released(run_key):
        return "Released"
    if judged is not None and refused(judged.verdicts):
        return "Rejected"
    if one is None:
        return "Unfinished" if span in seen.consumed else "Arrived"
    if one.state == "Running":
        return "Running" if working else "Lost"
    return one.state
