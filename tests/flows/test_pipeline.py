"""The flow against a real Prefect server, with stages that do no arithmetic. Takes about a minute."""

from __future__ import annotations

import logging
import re
from typing import Any

import httpx
import pytest
from prefect import Task
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import ParameterTypeError

import infra.compute.factory
from flows.pipeline import pipeline
from infra.store.base import Conflict
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.foundation.errors import (
    POLICIES,
    CancelledError,
    CapacityError,
    CodeError,
    ConfigError,
    DataError,
    FailureClass,
    HostError,
    StoreError,
)
from tasks.monitoring import otlp
from tasks.runs import ledger, releases
from tasks.runs.plan import NothingToDo
from tasks.runs.run import Run
from tests.support.fakes.fake_runner import FakeRunner, ingest
from tests.support.processes.otlp_receiver import receiver

ENCODER = "model.scratch.layers=1"


@pytest.fixture
def runner(with_pages: FakeRunner, without_pages: None) -> FakeRunner:
    return with_pages


@pytest.fixture
def with_pages(store: DirectoryStore, short_delays: None, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner


def run(store: DirectoryStore, *overrides: str, span: str | None = None) -> Run:
    return pipeline(store.uri, span, overrides=(ENCODER, *overrides))


def state_of_run(store: DirectoryStore, span: str | None = None) -> State[Run]:
    return pipeline(store.uri, span, overrides=(ENCODER,), return_state=True)


def test_a_run_is_released_and_named_after_its_span_and_attempt(prefect, store, with_pages):
    report = run(store)
    assert (report.state, report.span, report.vectors) == ("Released", "2021-Q1", 30)
    assert report.release == releases.read(store, 1)
    assert releases.current(store) == releases.read(store, 1)
    assert b"2021-Q1" in store.read(f"runs/{report.run_key}/report.html")
    seen = prefect.last_run()
    assert (seen.name, seen.state_name) == ("2021-Q1 attempt 1", "Released")
    assert seen.state is not None
    queries = r"Released as 1, recall@10 \d\.\d{4} on unseen queries and \d\.\d{4} on seen queries"
    assert re.fullmatch(queries, seen.state.message or "")
    tasks = prefect.task_runs(seen, 7)
    assert [task.name for task in tasks] == [f"{stage} 2021-Q1" for stage in Stage]
    assert {task.state_name for task in tasks} == {"Completed"}


def test_a_second_run_of_the_same_span_shows_every_stage_as_cached(prefect, store, runner):
    first = run(store)
    again = run(store, span="2021-Q1")
    assert runner.stages == list(Stage)
    assert (again.release, again.cached) == (first.release, tuple(Stage))
    assert {task.state_name for task in prefect.task_runs(prefect.last_run(), 7)} == {"Cached"}


def test_a_large_catalogue_is_embedded_once_before_its_model_is_judged(store, runner):
    assert run(store, "evaluate.corpus_items=10").state == "Released"
    judged_last = [stage for stage in Stage if stage not in (Stage.evaluate, Stage.release)]
    assert runner.stages == [*judged_last, Stage.evaluate, Stage.release]
    inferred, evaluated = (spec.inputs for spec in runner.specs[4:6])
    assert evaluated.challenger_vectors == inferred.vectors


def test_a_model_without_usable_vectors_is_refused_by_its_gates_at_any_size(store, runner):
    """Else its run would end as a bug, and so would each rerun: nobody could go on from the champion."""
    run(store, "evaluate.corpus_items=10")
    runner.metrics = {"recall@10": 0.0, "mrr@10": 0.0}
    runner.fail(Stage.infer, CodeError("all vectors are NaN"))
    assert run(store, "evaluate.corpus_items=10", span="2021-Q2").state == "Rejected"


def test_without_a_span_the_next_one_runs_until_there_is_none(store, runner):
    assert [run(store).span, run(store).span] == ["2021-Q1", "2021-Q2"]
    with pytest.raises(NothingToDo, match="up to 2021-Q2"):
        run(store)


def test_a_refused_model_ends_as_rejected_with_its_report(prefect, store, runner):
    champion = run(store).release
    runner.metrics = {"recall@10": 0.2, "mrr@10": 0.4}
    for _ in range(2):
        state = state_of_run(store, "2021-Q2")
        assert state.is_completed()
        assert state.name == "Rejected"
        assert "recall@10 0.2000" in str(state.message)
        report = state.result()
        assert (report.state, report.span, report.release) == ("Rejected", "2021-Q2", None)
        seen = prefect.last_run()
        assert (seen.state_name, seen.state_type) == ("Rejected", StateType.FAILED), "not green"
    assert run(store, span="2021-Q2").state == "Rejected"  # a plain call returns the report, too
    current = releases.current(store)
    assert current is not None
    assert champion is not None
    assert (current.refreshed, current.model.version) == (champion.number, champion.model.version)
    assert runner.stages[7:12] == ["validate", "health", "warmup", "train", "evaluate"]


def test_a_transient_failure_is_tried_again(prefect, store, runner):
    runner.fail(Stage.train, HostError("the machine went away"))
    runner.fail(Stage.train, StoreError("the disk was full"))
    assert run(store).state == "Released"
    assert [record.failure for record in ledger.records(store) if record.stage is Stage.train] == [
        FailureClass.HOST,
        FailureClass.STORE,
        None,
    ]
    train = prefect.task_runs(prefect.last_run(), 7)[3]
    assert (train.run_count, train.state_name) == (3, "Completed")


def test_a_retry_waits_as_long_as_its_failure_asks_and_longer_each_time(store, runner, monkeypatch, caplog):
    for failure, seconds in ((FailureClass.HOST, 0.2), (FailureClass.CAPACITY, 0.3)):
        monkeypatch.setitem(POLICIES, failure, POLICIES[failure]._replace(delay_seconds=seconds))
    runner.fail(Stage.train, CapacityError("no machine came"))
    runner.fail(Stage.train, HostError("the machine went away"))
    runner.fail(Stage.train, CapacityError("no machine came"))
    with caplog.at_level(logging.INFO):
        run(store, "retry.jitter=0")
    waits = re.findall(r"will start ([\d.]+) second", caplog.text)
    assert [float(seconds) for seconds in waits] == [0.3, 0.2 * 2, 0.3 * 4], "Prefect's own lines"


def test_used_up_retries_fail_the_run_and_the_next_run_has_new_ones(store, runner):
    runner.fail(Stage.infer, HostError("the machine went away"), times=6)
    state = state_of_run(store)
    assert state.is_failed()
    assert "try 5 of 5" in str(state.message)
    report = run(store, span="2021-Q1")
    assert report.state == "Released"
    assert report.cached == (Stage.validate, Stage.health, Stage.warmup, Stage.train, Stage.evaluate)
    assert runner.stages.count("infer") == 7


def test_the_number_of_attempts_comes_from_the_configuration(store, runner):
    runner.fail(Stage.validate, HostError("the machine went away"))
    with pytest.raises(HostError, match="That was try 1 of 1"):
        run(store, "retry.attempts=1")


def test_bad_data_is_not_tried_again_and_the_state_says_so(prefect, store, runner):
    runner.fail(Stage.validate, DataError("span 2021-Q1: 3 clean rows, at least 32 are needed"))
    state = state_of_run(store)
    assert state.is_failed()
    assert "2021-Q1: 3 clean rows, " in str(state.message)
    assert runner.stages == ["validate"]
    seen = prefect.last_run()
    assert "DataError" in str(seen.state and seen.state.message)


def test_an_interrupted_run_is_recorded_and_the_next_run_continues(store, runner):
    runner.fail(Stage.train, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        run(store)
    assert ledger.records(store)[-1].failure is FailureClass.CANCELLED
    report = run(store)
    assert report.state == "Released"
    assert report.cached == (Stage.validate, Stage.health, Stage.warmup)


def test_a_second_run_on_a_locked_lineage_is_refused_after_a_while(store, runner, impatient):
    with store.lock("lineages/main.run"):
        with pytest.raises(Conflict, match=r"lineages/main\.run "):
            run(store)
        assert run(store, "lineage=other").state == "Released"
    assert run(store).state == "Released"


def test_a_wrong_command_runs_nothing(store, runner):
    for overrides in [("train.learning_rat=1",), ("lineage=Main",)]:
        with pytest.raises(ConfigError):
            run(store, *overrides)
    with pytest.raises(ConfigError, match="2031-Q1"):
        run(store, span="2031-Q1")
    assert runner.specs == []
    assert store.list("runs") == []


def test_the_form_in_the_ui_asks_for_plain_values():
    fields = pipeline.parameters.properties
    assert list(fields) == ["workspace", "span", "config_file", "overrides", "scheduled_in"]
    assert {name for name, field in fields.items() if field["type"] != "string"} == {"overrides"}
    assert fields["overrides"]["items"]["type"] == "string"
    assert [text for text in ("", "2026-W47", "W47") if re.fullmatch(fields["span"]["pattern"], text)] == [
        "",
        "2026-W47",
    ]
    assert pipeline.parameters.required == ["workspace"]


def test_runs_continue_when_prefect_has_lost_its_database(prefect, store, runner):
    first = run(store)
    prefect.forget()
    with prefect.in_use():
        again = run(store, span="2021-Q1")
        assert (again.release, again.cached) == (first.release, tuple(Stage))
        assert {task.state_name for task in prefect.task_runs(prefect.last_run(), 7)} == {"Cached"}
        assert run(store).span == "2021-Q2"
    assert len(releases.history(store)) == 2


def scheduled(store: DirectoryStore, span: str) -> State[Run]:
    return pipeline(store.uri, span, overrides=(ENCODER,), scheduled_in="UTC", return_state=True)


def test_a_span_of_the_wrong_form_is_refused(store, runner):
    with pytest.raises(ParameterTypeError, match="span"):
        run(store, span="latest")


def test_missed_spans_run_first_even_if_they_are_rejected(store, runner):
    ingest(store, "2021-Q3", "2021-Q4")
    run(store)
    runner.metrics = {"recall@10": 0.2, "mrr@10": 0.4}
    state = scheduled(store, "2021-Q4")
    assert state.name == "Rejected"
    assert state.result().span == "2021-Q4"
    trained = [spec.span.name for spec in runner.specs if spec.stage is Stage.train]
    assert trained == ["2021-Q1", "2021-Q2", "2021-Q3", "2021-Q4"]


def test_a_missed_span_is_run_when_the_server_was_full_for_a_moment(store, runner, monkeypatch):
    """Prefect's client asks for a child run three times within seconds, and then gives up."""
    ingest(store, "2021-Q3")
    run(store)
    refused, create_run = [], Task.create_run

    async def refused_once(task: Task[Any, Any], *given: Any, **named: Any) -> Any:
        if not refused:
            refused.append(task.name)
            request = httpx.Request("POST", "http://127.0.0.1:1/api/task_runs/")
            raise httpx.HTTPStatusError("full", request=request, response=httpx.Response(503))
        return await create_run(task, *given, **named)

    monkeypatch.setattr(Task, "create_run", refused_once)
    assert scheduled(store, "2021-Q3").result().state == "Released"
    assert refused == ["pipeline"]
    assert [spec.span.name for spec in runner.specs if spec.stage is Stage.train] == ["2021-Q1", "2021-Q2", "2021-Q3"]


def test_a_missed_span_that_fails_stops_the_spans_after_it(store, runner):
    ingest(store, "2021-Q3")
    run(store)
    runner.fail(Stage.validate, DataError("span 2021-Q2: 3 clean rows, at least 32 are needed"))
    state = scheduled(store, "2021-Q3")
    assert state.is_failed()
    assert "2021-Q2: 3 clean rows" in str(state.message)
    assert [spec.span.name for spec in runner.specs if spec.stage is Stage.train] == ["2021-Q1"]


def test_cancelling_a_missed_span_cancels_the_whole_run(prefect, store, runner):
    ingest(store, "2021-Q3")
    run(store)
    runner.fail(Stage.train, CancelledError("the flow run was cancelled in Prefect"))
    state = scheduled(store, "2021-Q3")
    assert state.is_cancelled(), state
    assert runner.stages.count("train") == 2


def test_a_span_in_the_window_of_the_first_run_is_done(store, runner):
    run(store, span="2021-Q2")
    state = scheduled(store, "2021-Q1")
    report = state.result()
    assert (report.span, report.state, len(report.cached)) == ("2021-Q2", "Released", 7)


def test_the_first_run_of_a_lineage_misses_nothing(store, runner):
    assert scheduled(store, "2021-Q2").result().span == "2021-Q2"
    assert runner.stages == list(Stage)


def test_a_run_sends_its_timeline_and_no_collector_disturbs_it(store, runner, monkeypatch):
    """Each run is released: with a collector that is down, one that refuses, one that is silent, and a sound one."""
    monkeypatch.setattr(otlp, "PATIENCE_SECONDS", 1.0)
    with receiver() as down:
        pass
    with receiver(400) as refusing, receiver(drip_seconds=0.5) as silent, receiver() as sound:
        for collector, span in ((down, "2021-Q1"), (refusing, "2021-Q1"), (silent, "2021-Q2"), (sound, "2021-Q2")):
            monkeypatch.setenv(otlp.ENDPOINT, collector.url)
            assert run(store, span=span).state == "Released"
        assert (len(refusing.requests), len(silent.requests)) == (1, 1)
        (root,) = (span for span in sound.spans if not span.parent_span_id)
        assert (root.name, root.status.code) == ("run 2021-Q2", 1)
        monkeypatch.setenv(otlp.ENDPOINT, sound.url)
        runner.fail(Stage.train, DataError("row 3 is bad"))
        ingest(store, "2021-Q3")
        with pytest.raises(DataError):
            run(store)
        (root,) = (span for span in sound.spans if not span.parent_span_id)
        assert (root.name, root.status.code) == ("run 2021-Q3", 2)
