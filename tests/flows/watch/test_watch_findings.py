"""The events that a watch sends, its message and its pages in the UI, under a real Prefect server."""

from __future__ import annotations

import datetime as dt
import re

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.objects import Artifact

from flows.orchestration.watch_findings import CATALOGUE_STALE, LATE, MISSED, RESOLVED, STALE, WILL_BE_LATE, section
from tasks.foundation.errors import FailureClass
from tasks.planning.next_run import plan_run
from tests.flows.watch.watching import NOW, PROMISED, SETTINGS, look, running, set_clock
from tests.support.fakes.fake_runner import ingest, ingest_feed, small_config
from tests.support.fakes.stages import carry_out


def artifact(key: str) -> Artifact:
    with get_client(sync_client=True) as client:
        found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
    return max(found, key=lambda artifact: str(artifact.created))


def test_the_message_says_how_old_the_vectors_are(store, monkeypatch):
    set_clock(monkeypatch, "2026-11-13T08:00:00+00:00")
    state, _ = look(store)
    assert state.name == "Completed"
    assert re.search("2026-11-12, 8 h old", str(state.message))


# --- events -------------------------------------------------------------------------------------------------------


def test_a_late_run_is_sent_once_and_arrives_at_the_server(store, prefect, monkeypatch):
    run_key = running(store, began_at="2026-11-20T08:00:00+00:00", flow_run="8d1c")
    set_clock(monkeypatch, "2026-11-20T09:30:00+00:00")
    with store.lock("lineages/main.run"):
        look(store)
        look(store)
    (event,) = prefect.events(LATE, f"millrace.run.{run_key}")
    assert event["resource"] == {
        "prefect.resource.id": f"millrace.run.{run_key}",
        "prefect.resource.name": "2026-11-19 attempt 1",
        "millrace.span": "2026-11-19",
        "millrace.lineage": "main",
        "millrace.flow-run": "8d1c",
    }
    assert "2026-11-20 09:00 UTC" in event["payload"].pop("sentence")
    assert event["payload"] == {
        "severity": "warning",
        "dedup_key": f"{store.uri}#main/late-{run_key}-1",
        "since": "2026-11-20T09:30:00+00:00",
        "reminder": 0,
        "class": FailureClass.CAPACITY,  # three of four and a half hours passed before it began
        "span": "2026-11-19",
        "lineage": "main",
        "run_key": run_key,
        "attempt": 1,
        "deadline": "2026-11-20T09:00:00+00:00",
        "expected_end": "2026-11-20T09:31:08+00:00",
        "page": "http://ui/runs/flow-run/1",
    }


def test_a_warning_comes_before_a_run_is_late(store, prefect, monkeypatch):
    run_key = running(store)
    set_clock(monkeypatch, "2026-11-20T08:59:30+00:00")
    with store.lock("lineages/main.run"):
        look(store)
        (event,) = prefect.events(WILL_BE_LATE, f"millrace.run.{run_key}")
        assert event["payload"]["class"] is None
        set_clock(monkeypatch, "2026-11-20T09:10:00+00:00")
        look(store)
    assert len(prefect.events(LATE, f"millrace.run.{run_key}")) == 1
    assert len(prefect.events(WILL_BE_LATE, f"millrace.run.{run_key}")) == 1


def test_each_missed_span_and_both_stale_ages_are_sent_once(store, prefect):
    lineage = "events"  # other tests' events are on the same server
    config = small_config(*SETTINGS, *PROMISED, f"lineage={lineage}")
    carry_out(plan_run(store, config))
    ingest(store, "2026-11-13", "2026-11-14")
    ingest_feed(store, "2026-11", at="2026-11-20T01:00:00+00:00")
    asked = (f"lineage={lineage}", "freshness.target_hours=48")
    look(store, *asked, catch_up=False)
    _, report = look(store, *asked, catch_up=False)
    for span in ("2026-11-13", "2026-11-14"):
        (event,) = prefect.events(MISSED, f"millrace.span.{lineage}.{span}")
        assert (event["payload"]["span"], event["payload"]["lineage"]) == (span, lineage)
    (event,) = prefect.events(STALE, f"millrace.lineage.{lineage}")
    assert (event["payload"]["newest"], event["payload"]["target_hours"]) == ("2026-11-12", 48.0)
    assert "millrace run --span 2026-11-13" in event["payload"]["sentence"]
    (event,) = prefect.events(CATALOGUE_STALE, f"millrace.lineage.{lineage}")
    assert [each["source"] for each in event["payload"]["waiting"]] == ["items/2026-11/v1"]
    assert (event["payload"]["age_hours"], event["payload"]["target_hours"]) == (5.0, 3.0)
    assert report.stale
    assert store.list(f"watch/{lineage}") == [
        f"watch/{lineage}/problems/{what}.json"
        for what in ("catalogue-stale", "missed-2026-11-13-v1", "missed-2026-11-14-v1", "stale")
    ]


def test_a_problem_that_stays_is_sent_again_each_day_and_once_when_it_is_over(store, prefect, monkeypatch):
    lineage = "standing"
    carry_out(plan_run(store, small_config(*SETTINGS, *PROMISED, f"lineage={lineage}")))
    resource = f"millrace.lineage.{lineage}"

    def after(hour: int, target: int, stale: int, over: int) -> None:
        """Watch at this hour with this target, and expect these numbers of events."""
        at = dt.datetime.fromisoformat(NOW) + dt.timedelta(hours=hour)
        set_clock(monkeypatch, at.isoformat())
        look(store, f"lineage={lineage}", f"freshness.target_hours={target}", catch_up=False)
        assert len(prefect.events(STALE, resource, stale)) == stale, hour
        assert len(prefect.events(RESOLVED, resource, over)) == over, hour

    for hour, stale in [(0, 1), (1, 1), (24, 2), (25, 2), (48, 3)]:
        after(hour, 48, stale, 0)
    after(49, 4000, 3, 1)
    after(50, 4000, 3, 1)
    after(51, 48, 4, 1)  # it is stale anew
    events = sorted(prefect.events(STALE, resource, 4), key=lambda event: event["payload"]["reminder"])
    assert [event["payload"]["reminder"] for event in events] == [0, 0, 1, 2]
    assert all("since 2026-11-20 06:00 UTC" in each["payload"]["sentence"] for each in events[2:])
    (over,) = prefect.events(RESOLVED, resource)
    assert over["payload"]["resolves"] == STALE
    assert over["payload"]["severity"] == "info"
    assert {event["payload"]["dedup_key"] for event in [*events, over]} == {f"{store.uri}#{lineage}/stale"}
    assert {event["payload"]["severity"] for event in events} == {"critical"}


def test_two_watches_at_the_same_moment_send_one_event(store, prefect, monkeypatch):
    """Neither sees the record of the other, which is written after the server has the event."""
    lineage = "twice"
    carry_out(plan_run(store, small_config(*SETTINGS, *PROMISED, f"lineage={lineage}")))
    for minute in (0, 1):
        at = dt.datetime.fromisoformat(NOW) + dt.timedelta(minutes=minute)
        set_clock(monkeypatch, at.isoformat())
        with monkeypatch.context() as blind:
            blind.setattr("flows.orchestration.watch_findings._read", lambda *_: ())
            look(store, f"lineage={lineage}", "freshness.target_hours=48", catch_up=False)
    look(store, f"lineage={lineage}", "freshness.target_hours=4000", catch_up=False)
    assert len(prefect.events(RESOLVED, f"millrace.lineage.{lineage}")) == 1, "the server took the others before"
    assert len(prefect.events(STALE, f"millrace.lineage.{lineage}")) == 1


def test_what_the_server_did_not_take_the_next_watch_sends(store, prefect, monkeypatch):
    lineage = "away"
    carry_out(plan_run(store, small_config(*SETTINGS, *PROMISED, f"lineage={lineage}")))
    asked = (f"lineage={lineage}", "freshness.target_hours=48")
    with monkeypatch.context() as away:
        away.setattr("flows.orchestration.events.deliver", refuse)
        look(store, *asked, catch_up=False)
    assert store.list("watch") == []
    look(store, *asked, catch_up=False)
    assert len(prefect.events(STALE, f"millrace.lineage.{lineage}")) == 1


def refuse(*event: object, **more: object) -> None:
    raise httpx.ConnectError("the server is away")


# --- in the UI ----------------------------------------------------------------------------------------------------


def test_the_ui_has_a_table_of_spans_and_a_page_of_problems(store):
    running(store)
    _, report = look(store)
    table = artifact("freshness-main")
    assert table.type == "table"
    assert all(span in str(table.data) for span in ("2026-11-12", "2026-11-13", "2026-11-19"))
    assert artifact("watch-main").type == "markdown"
    page = section(report, "Something was started.")
    assert page.title == "Attention"
    assert all(words in page.lines[0] for words in ("2026-11-12", "7.2 days old", "16.7 days"))
    assert "30 items" in page.lines[1]
    assert page.lines[2] == "Something was started."
    assert b"\nmillrace_exposition_timestamp_seconds " in store.read("reports/metrics.prom")
    clock = page.tables[0].rows[0]
    assert (clock[0].text, clock[0].link) == ("2026-11-19 attempt 1", "http://ui/runs/flow-run/1")
    assert clock[1].text == "lost"
