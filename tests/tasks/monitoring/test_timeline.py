"""The timeline of a run as OTLP/JSON, read as a backend reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.foundation.errors import FailureClass
from tasks.monitoring.timeline import timeline
from tasks.runs.run import Run, read_run
from tasks.runs.snapshot import Snapshot
from tests.support.workspace.past import FAILURES, write_run

Span = dict[str, Any]


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def read(store: DirectoryStore, key: str) -> tuple[Run, list[Span]]:
    run = read_run(Snapshot(store), key)
    (resource,) = json.loads(timeline(run))["resourceSpans"]
    (scope,) = resource["scopeSpans"]
    return run, scope["spans"]


def facts(span: Span) -> dict[str, Any]:
    found = {}
    for each in span["attributes"]:
        ((kind, value),) = each["value"].items()
        assert each["key"] not in found
        found[each["key"]] = int(value) if kind == "intValue" else value
    return found


def named(spans: list[Span], name: str) -> Span:
    (found,) = (span for span in spans if span["name"] == name)
    return found


def test_it_is_one_valid_trace(store: DirectoryStore) -> None:
    """Ids of the right length, unique and never zero; each child inside its parent, which is there."""
    _, spans = read(store, write_run(store, 0, retried=FailureClass.HANG))
    (trace,) = {span["traceId"] for span in spans}
    assert len(bytes.fromhex(trace)) == 16
    by_id = {span["spanId"]: span for span in spans}
    assert len(by_id) == len(spans)
    assert all(len(bytes.fromhex(own)) == 8 and int(own, 16) for own in by_id)
    (root,) = (span for span in spans if "parentSpanId" not in span)
    for span in spans:
        begin, end = (int(span[f"{each}TimeUnixNano"]) for each in ("start", "end"))
        parent = by_id[span.get("parentSpanId", root["spanId"])]
        assert int(parent["startTimeUnixNano"]) <= begin <= end <= int(parent["endTimeUnixNano"]), span["name"]
        assert span["kind"] == 1
        assert all(isinstance(span[f"{each}TimeUnixNano"], str) for each in ("start", "end")), "64 bits are text"


def test_every_attempt_is_there_with_its_seconds_and_dollars(store: DirectoryStore) -> None:
    run, spans = read(store, write_run(store, 0, retried=FailureClass.HANG))
    attempts = {
        (one["millrace.stage"], one["millrace.attempt"]): one for one in map(facts, spans) if "millrace.stage" in one
    }
    assert set(attempts) == {(one.stage.value, one.attempt) for one in run.attempts}
    assert attempts["train", 2]["millrace.seconds.productive"] == run.attempts[4].seconds.productive
    assert sum(one["millrace.dollars"] for one in attempts.values()) == pytest.approx(run.totals.cost)
    assert sum(one["millrace.seconds.lost"] for one in attempts.values()) > 0
    train = named(spans, "train, attempt 2")
    phases = {span["name"] for span in spans if span.get("parentSpanId") == train["spanId"]}
    assert phases == {"queued", "booting", "compiling", "restoring", "productive"}


def test_a_failure_is_an_error_with_its_class_and_sentence(store: DirectoryStore) -> None:
    """On the attempt, its invocation and the run, and nowhere else; an attempt that was retried leaves the run OK."""
    _, failed = read(store, write_run(store, 0, "Failed", FailureClass.OOM))
    errors = {span["name"]: span for span in failed if span["status"].get("code") == 2}
    assert set(errors) == {"run 2026-W01", "invocation 1", "warmup"}
    for span in errors.values():
        assert span["status"]["message"] == FAILURES[FailureClass.OOM]
        assert facts(span)["error.type"] == "OOM"
    _, retried = read(store, write_run(store, 1, retried=FailureClass.HANG))
    assert [span["name"] for span in retried if span["status"].get("code") == 2] == ["train"]
    assert named(retried, "run 2026-W02")["status"] == {"code": 1}


def test_a_run_that_goes_on_has_no_status_and_ends_at_its_last_moment(store: DirectoryStore) -> None:
    run, spans = read(store, write_run(store, 0, "Running"))
    root, train = spans[0], named(spans, "train")
    assert root["status"] == train["status"] == {}
    assert root["endTimeUnixNano"] == max((span["endTimeUnixNano"] for span in spans), key=int)
    assert run.stage(Stage.train).attempts[-1].ended_at is None


def test_a_second_export_is_the_same(store: DirectoryStore) -> None:
    key = write_run(store, 0)
    assert timeline(read_run(Snapshot(store), key)) == timeline(read_run(Snapshot(store), key))
    other = write_run(store, 1)
    ids = [{span["spanId"] for span in read(store, one)[1]} for one in (key, other)]
    assert not ids[0] & ids[1]
