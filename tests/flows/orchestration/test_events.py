"""What becomes of a model is announced once, on a real Prefect server, with the record that it is about.

An event that another process has sent meanwhile is not sent again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

import flows.orchestration.events
import infra.compute.factory
from flows.orchestration.events import REFRESHED, REJECTED, RELEASED, ROLLED_BACK, Event, send_once, send_waiting
from flows.pipeline import pipeline
from flows.refresh import refresh
from infra.prefect_server import client_environment
from infra.store.directory import DirectoryStore
from tasks.contracts.workspace import WAITING
from tasks.foundation.clock import now
from tasks.planning.start import next_start
from tasks.runs import releases
from tasks.runs.results import read_judgement
from tests.support.fakes.fake_runner import FakeRunner, ingest, ingest_feed, small_config
from tests.support.processes import command, forked
from tests.support.processes.prefect_server import PrefectServer

OVERRIDES = ("model.scratch.layers=1",)
ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def store(prefect: PrefectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DirectoryStore]:
    store = DirectoryStore(tmp_path)
    ingest(store, "2021-Q1", "2021-Q2")
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    prefect.forget()  # resources are numbered, and each workspace begins with release 1
    with prefect.in_use():
        yield store


@pytest.fixture(autouse=True)
def quick(without_pages: None, short_delays: None) -> None:
    """Stages that do nothing have no pages."""


def test_a_release_is_announced_once_with_its_record(prefect, store, golden):
    for _ in range(2):  # the second time everything is cached
        pipeline(store.uri, "2021-Q1", overrides=OVERRIDES)
    release = releases.read(store, 1)
    (event,) = prefect.events(RELEASED, "millrace.release.1")
    assert event["resource"] == {
        "prefect.resource.id": "millrace.release.1",
        "prefect.resource.name": "release 1",
        "millrace.span": "2021-Q1",
        "millrace.lineage": "main",
        "millrace.run": release.run_key,
    }
    assert event["payload"]["release"] == release.model_dump(mode="json")
    assert (event["payload"]["current"], event["payload"]["lineage"]) == (1, "main")
    golden(event["payload"]["sentence"], hide=r"m-\w+")


def test_a_rejection_carries_the_verdicts_and_the_refresh_after_it_is_another_event(
    prefect, store, monkeypatch, golden
):
    pipeline(store.uri, overrides=OVERRIDES)
    runner = FakeRunner(store)
    runner.metrics = {"recall@10": 0.1, "mrr@10": 0.1}
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    report, _ = (pipeline(store.uri, "2021-Q2", overrides=OVERRIDES) for _ in range(2))
    judged = read_judgement(store, report.run_key)
    assert judged is not None
    (event,) = prefect.events(REJECTED, f"millrace.run.{report.run_key}")
    following = next_start(store, small_config())
    assert "2021-Q2" in following
    golden(event["payload"]["sentence"])
    (event,) = prefect.events(REFRESHED, "millrace.release.2")
    assert (event["payload"]["release"]["refreshed"], event["payload"]["current"]) == (1, 2)


def test_a_server_that_takes_no_event_fails_no_run_and_gets_it_later(prefect, store, monkeypatch):
    with monkeypatch.context() as away:
        away.setattr(flows.orchestration.events, "deliver", refuse)
        assert pipeline(store.uri, overrides=OVERRIDES).state == "Released"
        ingest_feed(store, "2021-01")
        assert refresh(store.uri, overrides=OVERRIDES) == releases.read(store, 2)
        assert store.list("watch") == [], "nothing is on record as sent"
    send_waiting(store)
    assert [len(prefect.events(name, f"millrace.release.{n}")) for n, name in ((1, RELEASED), (2, REFRESHED))] == [1, 1]
    assert store.list("watch") == ["watch/main/release-1.json", "watch/main/release-2.json"]
    assert store.list("outbox") == []


def refuse(*event: object, **more: object) -> None:
    raise httpx.ConnectError("the server is away")


def test_an_event_waits_for_a_server_that_is_away_and_comes_once(prefect, store):
    event = Event(
        what="late-abc-1",
        event="millrace.run.late",
        lineage="main",
        severity="warning",
        resource={"prefect.resource.id": "millrace.run.abc"},
        sentence="It is late.",
        payload={"span": "2021-Q1"},
    )
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):  # nobody listens there
        send_once(store, event)
        send_once(store, event)
    assert (len(store.list("outbox")), store.list("watch")) == (1, [])
    other = event.model_copy(update={"what": "late-abc-2", "resource": {"prefect.resource.id": "millrace.run.other"}})
    send_once(store, other)
    send_once(store, event)
    assert len(prefect.events("millrace.run.late", "millrace.run.other")) == 1
    (found,) = prefect.events("millrace.run.late", "millrace.run.abc")
    assert found["payload"] == {
        "lineage": "main",
        "sentence": "It is late.",
        "severity": "warning",
        "dedup_key": f"{store.uri}#main/late-abc-1",
        "span": "2021-Q1",
    }


def two_releases(store: DirectoryStore) -> None:
    for _ in range(2):
        pipeline(store.uri, overrides=OVERRIDES)


def test_a_rollback_by_the_command_is_announced_where_a_server_runs(prefect, store):
    two_releases(store)
    rollback = ("rollback", "--workspace", store.uri)
    for to in ("1", "2", "1"):  # each is a rollback of its own
        environment = {**os.environ, **client_environment(prefect.server), "PREFECT_API_URL": prefect.url}
        rolled = forked.millrace(*rollback, "--to", to, environment=environment, seconds=60)
        assert (rolled.code, rolled.err) == (0, "")
    events = prefect.events(ROLLED_BACK, "millrace.release.1", 2)
    good, bad = (releases.read(store, number).model.version for number in (1, 2))
    assert [good in said and bad in said for said in (each["payload"]["sentence"] for each in events)] == [True] * 2
    assert events[0]["payload"]["release"] == releases.read(store, 1).model_dump(mode="json")


def test_a_rollback_needs_no_server(store, capsys, monkeypatch, tmp_path):
    two_releases(store)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "no server"))
    quiet = command.call(capsys, "rollback", "--workspace", store.uri)
    assert (quiet.code, quiet.err) == (0, "")
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")  # nobody listens there
    away = command.call(capsys, "rollback", "--to", "2", "--workspace", store.uri)
    assert away.code == 0
    assert "PREFECT_API_URL is http://127.0.0.1:9" in away.err
    current = releases.current(store)
    assert current is not None
    assert current.number == 2


def test_an_event_on_record_as_sent_leaves_the_outbox_without_a_second_alert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process was killed between its record and the deletion, or two looked for the record at the same moment."""
    store, sent = DirectoryStore(tmp_path), list[str]()
    monkeypatch.setattr(flows.orchestration.events, "deliver", lambda store, event, *_: sent.append(event.what))
    for what in ("late-1", "late-1", "late-2"):
        event = Event(
            what=what, event="millrace.run.late", lineage="main", severity="warning", sentence="It is late.",
            resource={"prefect.resource.id": "millrace.run.abc"}, payload={},
        )  # fmt: skip
        waiting = flows.orchestration.events.WaitingEvent(event=event, at=now())
        store.create(WAITING.key(lineage="main", what=what), waiting.to_json())
        send_waiting(store)
    assert (sent, store.list("outbox")) == (["late-1", "late-2"], [])
