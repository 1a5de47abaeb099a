"""The timeline of one run as OTLP/JSON: a trace whose spans are the run, its invocations, attempts and their phases.

It is made from the records alone, and all ids from their names, so that a second export is the same one and a backend
keeps one trace. The form is ExportTraceServiceRequest in the JSON mapping of OTLP: ids in hex, enumerations and times
as numbers, 64-bit numbers as text.
"""

import datetime as dt
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tasks.contracts.outcomes import Phases
from tasks.foundation.errors import FailureClass
from tasks.runs.invocations import Invocation
from tasks.runs.ledger import LedgerRecord
from tasks.runs.run import Run

SCOPE = "millrace.ledger"
INTERNAL = 1  # SpanKind: work inside one service
OK, ERROR = 1, 2  # StatusCode; 0: neither, as while it runs
_RUN = "run"

Json = dict[str, Any]
Value = str | int | float | bool | tuple[str, ...] | None


def timeline(run: Run) -> bytes:
    """Return the trace of a run; without spans if it has not begun.

    Work without an end on record ends at the last moment that any record of it names, and has no status.
    """
    resource = {"service.name": "millrace", "millrace.workspace": run.snapshot.store.uri}
    spans = list(_spans(run)) if run.began_at else []
    scoped = {"scope": {"name": SCOPE}, "spans": spans}
    found = {"resourceSpans": [{"resource": {"attributes": _attributes(resource)}, "scopeSpans": [scoped]}]}
    return json.dumps(found, indent=1, ensure_ascii=False).encode() + b"\n"


def _spans(run: Run) -> Iterator[Json]:
    """Yield parents before their children."""
    ends = {each.number: _last(run, each) for each in run.invocations}
    last = max((*ends.values(), *(_end(each) for each in run.attempts), run.began_at))
    facts = {
        "millrace.run": run.run_key, "millrace.span": run.span, "millrace.lineage": run.lineage,
        "millrace.state": run.state.value, "millrace.dollars": run.totals.cost,
        "millrace.reason": run.message or None,
    }  # fmt: skip
    done = run.ended_at is not None
    yield _span(run, _RUN, None, f"run {run.span}", run.began_at, last, facts, done, run.failure, run.message)
    for one in run.invocations:
        facts = {
            "millrace.invocation": one.number, "millrace.flow_run": one.flow_run or None, "url.full": one.page or None,
            "millrace.scheduled_at": one.scheduled_at, "millrace.deadline": one.deadline,
            "millrace.state": one.state.value,
        }  # fmt: skip
        name, over = f"invocation {one.number}", one.ended_at is not None
        yield _span(run, name, _RUN, name, one.began_at, ends[one.number], facts, over, one.failure, one.message)
    for attempt in run.attempts:
        yield from _attempt(run, attempt)


def _attempt(run: Run, record: LedgerRecord) -> Iterator[Json]:
    begun = [one.number for one in run.invocations if one.began_at <= record.started_at]
    own = f"{record.stage} {record.attempt}"
    phases = {name: getattr(record.seconds, name) for name in Phases.model_fields}
    facts: dict[str, Value] = {
        "millrace.stage": record.stage.value, "millrace.attempt": record.attempt, "millrace.dollars": record.cost,
        "millrace.workers": record.workers, "millrace.machines": record.machines, "millrace.instance": record.instance,
        "millrace.job": record.job or None, "millrace.hosts": record.hosts or None,
        **{f"millrace.seconds.{name}": seconds for name, seconds in phases.items()},
    }  # fmt: skip
    parent = f"invocation {max(begun)}" if begun else _RUN
    name = record.stage.value if record.attempt == 1 else f"{record.stage}, attempt {record.attempt}"
    over, end = record.ended_at is not None, _end(record)
    yield _span(run, own, parent, name, record.started_at, end, facts, over, record.failure, record.message)
    at = record.started_at
    for phase, seconds in phases.items():  # the ledger has sums: one after the other, in the order in which they begin
        if seconds:
            then = min(end, _later(at, seconds))
            yield _span(run, f"{own} {phase}", own, phase, at, then, {}, False)
            at = then


def _span(
    run: Run,
    own: str,
    parent: str | None,
    name: str,
    begin: str,
    end: str,
    facts: Mapping[str, Value],
    over: bool,
    failure: FailureClass | None = None,
    message: str = "",
) -> Json:
    """Return a span; `own` and `parent` name it and its parent within the run."""
    failed = {"error.type": failure.value} if failure is not None else {}
    status: Json = {"code": OK} if over else {}
    if failure is not None:
        status = {"code": ERROR, "message": message}
    return {
        "traceId": _hex(run.run_key, 32),
        "spanId": _hex(f"{run.run_key} {own}", 16),
        **({"parentSpanId": _hex(f"{run.run_key} {parent}", 16)} if parent is not None else {}),
        "name": name,
        "kind": INTERNAL,
        "startTimeUnixNano": _nanoseconds(begin),
        "endTimeUnixNano": _nanoseconds(max(begin, end)),
        "attributes": _attributes({**facts, **failed}),
        "status": status,
    }


def _end(record: LedgerRecord) -> str:
    return record.ended_at or _later(record.started_at, record.seconds.total)


def _last(run: Run, invocation: Invocation) -> str:
    """Return the end of an invocation; without one the last moment of its attempts, or else its begin."""
    if invocation.ended_at is not None:
        return invocation.ended_at
    following = min((one.began_at for one in run.invocations if one.number > invocation.number), default=None)
    own = [each for each in run.since(invocation.began_at) if following is None or each.started_at < following]
    return max((invocation.began_at, *map(_end, own)))


def _later(moment: str, seconds: float) -> str:
    then = dt.datetime.fromisoformat(moment) + dt.timedelta(seconds=seconds)
    return then.isoformat(timespec="microseconds")


def _nanoseconds(moment: str) -> str:
    since = dt.datetime.fromisoformat(moment) - dt.datetime.fromtimestamp(0, dt.UTC)
    return str(since // dt.timedelta(microseconds=1) * 1000)


def _hex(name: str, digits: int) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:digits]


def _attributes(facts: Mapping[str, Value]) -> list[Json]:
    """Return the attributes that are known."""
    return [{"key": key, "value": _value(value)} for key, value in facts.items() if value is not None]


def _value(value: Value) -> Json:
    match value:
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case tuple():
            return {"arrayValue": {"values": [{"stringValue": each} for each in value]}}
        case _:
            return {"stringValue": str(value)}
