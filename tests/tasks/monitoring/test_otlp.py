"""Timelines that are sent: taken by OTLP's own messages, compared with the ledger, and of no harm to a run."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import ParseError

from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import Phases
from tasks.foundation.errors import FailureClass
from tasks.monitoring import otlp
from tasks.monitoring.otlp import address, send_timeline
from tasks.monitoring.timeline import timeline
from tasks.runs.run import Run, read_run
from tasks.runs.snapshot import Snapshot
from tests.support.processes.otlp_receiver import decoded, receiver
from tests.support.workspace.past import write_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    store = DirectoryStore(tmp_path)
    return read_run(Snapshot(store), write_run(store, 0, retried=FailureClass.HANG))


def facts(span: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in span.attributes}


def nanoseconds(moment: str) -> int:
    since = dt.datetime.fromisoformat(moment) - dt.datetime.fromtimestamp(0, dt.UTC)
    return since // dt.timedelta(microseconds=1) * 1000


def test_a_receiver_reads_the_ledger_in_the_spans(run: Run) -> None:
    """Ids from the run's key, parents, times and attributes of every attempt."""
    with receiver() as there:
        assert send_timeline(run, {"OTEL_EXPORTER_OTLP_ENDPOINT": there.url}) == ""
        spans = there.spans
    assert [path for path, _ in there.requests] == ["/v1/traces"]
    (resource,) = there.taken[0].resource_spans
    assert facts(resource.resource) == {"service.name": "millrace", "millrace.workspace": run.snapshot.store.uri}
    assert {span.trace_id for span in spans} == {hashlib.sha256(run.run_key.encode()).digest()[:16]}
    by_id = {span.span_id: span for span in spans}
    assert by_id.keys() >= {hashlib.sha256(f"{run.run_key} {one.stage} {one.attempt}".encode()).digest()[:8]
                            for one in run.attempts}  # fmt: skip
    (root,) = (span for span in spans if not span.parent_span_id)
    assert (root.start_time_unix_nano, root.end_time_unix_nano) == (
        nanoseconds(run.began_at), nanoseconds(run.ended_at or ""))  # fmt: skip
    assert facts(root)["millrace.run"] == run.run_key
    (invocation,) = (span for span in spans if "millrace.invocation" in facts(span))
    assert by_id[invocation.parent_span_id] is root
    attempts = {(facts(span)["millrace.stage"], facts(span)["millrace.attempt"]): span
                for span in spans if "millrace.stage" in facts(span)}  # fmt: skip
    assert len(attempts) == len(run.attempts) > 7
    for record in run.attempts:
        span = attempts[record.stage.value, record.attempt]
        said = facts(span)
        assert by_id[span.parent_span_id] is invocation
        assert (span.start_time_unix_nano, span.end_time_unix_nano) == (
            nanoseconds(record.started_at), nanoseconds(record.ended_at or ""))  # fmt: skip
        assert said["millrace.dollars"] == pytest.approx(record.cost)
        seconds = {name: getattr(record.seconds, name) for name in Phases.model_fields}
        assert {name: said[f"millrace.seconds.{name}"] for name in seconds} == seconds
        assert said.get("error.type") == (record.failure.value if record.failure else None)
        assert span.status.code == (2 if record.failure else 1)
        children = [each for each in spans if each.parent_span_id == span.span_id]
        assert [each.name for each in children] == [name for name, value in seconds.items() if value]


def test_the_receiver_refuses_what_the_messages_do_not_have(run: Run) -> None:
    """The check itself: a key of another name, a number as text in a wrong place, an id that is no id."""
    sound = json.loads(timeline(run))
    for change in ({"spanID": "1"}, {"kind": "inside"}, {"startTimeUnixNano": "soon"}, {"spanId": "xyz"}):
        spoilt = json.loads(json.dumps(sound))
        spoilt["resourceSpans"][0]["scopeSpans"][0]["spans"][0] |= change
        with pytest.raises((ValueError, ParseError)):
            decoded(json.dumps(spoilt).encode())


def test_a_second_time_is_the_same_trace_and_headers_come_along(run: Run) -> None:
    environment = {"OTEL_EXPORTER_OTLP_HEADERS": "authorization=Basic%20YTpi, x-team = search"}
    with receiver() as there:
        for _ in range(2):
            environment["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = f"{there.url}/other/traces"
            assert send_timeline(run, environment) == ""
    assert there.taken[0] == there.taken[1]
    assert {path for path, _ in there.requests} == {"/other/traces"}
    for _, headers in there.requests:
        assert (headers["authorization"], headers["x-team"]) == ("Basic YTpi", "search")
        assert headers["content-type"] == "application/json"


def test_without_an_address_nothing_is_made() -> None:
    assert address({}) is None
    assert address({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://one:4318/"}) == "http://one:4318/v1/traces"
    nothing: Any = None
    assert send_timeline(nothing, {}) == ""


def test_a_receiver_that_is_down_or_refuses_is_a_sentence_without_its_password(run: Run) -> None:
    with receiver() as gone:
        pass
    port = gone.url.rpartition(":")[2]
    down = send_timeline(run, {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://me:secret@127.0.0.1:{port}"})
    assert down.startswith(f"http://127.0.0.1:{port}/v1/traces: ConnectError")
    with receiver(status=400) as refusing:
        refused = send_timeline(run, {"OTEL_EXPORTER_OTLP_ENDPOINT": refusing.url})
    assert refused == f"{refusing.url}/v1/traces answered 400: {{}}"
    assert send_timeline(run, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:no"}).startswith(
        "http://127.0.0.1:no/v1/traces: Invalid"
    )


def test_a_receiver_that_answers_byte_by_byte_costs_no_more_than_the_patience(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "PATIENCE_SECONDS", 0.5)
    with receiver(drip_seconds=0.2) as slow:
        began = time.monotonic()
        said = send_timeline(run, {"OTEL_EXPORTER_OTLP_ENDPOINT": slow.url})
        assert time.monotonic() - began < 5
    assert said.startswith(f"{slow.url}/v1/traces ")
