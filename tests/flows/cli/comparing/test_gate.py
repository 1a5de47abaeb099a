"""`millrace gate` against a real Prefect server, with stages that do no arithmetic."""

from __future__ import annotations

import pytest

import flows.cli.gating
import infra.compute.factory
from flows.cli.flow_runs import FlowDone
from flows.cli.gating import GateOutput, gate_page
from flows.cli.terminal.options import RunOptions
from flows.gate import gate
from flows.pipeline import pipeline
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.foundation.errors import ConfigError
from tasks.runs import releases
from tasks.runs.holds import hold
from tests.support.fakes.fake_runner import FakeRunner, ingest

OVERRIDES = ("model.scratch.layers=1",)
FLOOR = "evaluate.gates=[{{metric: recall@10, direction: higher, threshold: {}, baseline: none, severity: critical}}]"
UP_TO_EVALUATE = ["validate", "health", "warmup", "train", "evaluate"]


@pytest.fixture
def runner(store: DirectoryStore, short_delays: None, without_pages: None, monkeypatch) -> FakeRunner:
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    monkeypatch.setattr(
        flows.cli.gating, "run_flow", lambda name, verbose, *given: FlowDone(gate(*given), "ui", "page")
    )
    return runner


def judged(
    store: DirectoryStore, run_key: str, *settings: str, override: str | None = None, reason: str | None = None
) -> GateOutput:
    return flows.cli.gating.gate(RunOptions(store, None, settings), run_key, override, reason)


def test_a_refused_run_is_released_when_its_gates_change(store, runner, golden):
    refused = pipeline(store.uri, overrides=(*OVERRIDES, FLOOR.format(0.9)))
    assert refused.state == "Rejected"
    same = judged(store, refused.run_key[:8])
    assert (same.state, same.judgement, same.release, same.run_url) == ("Rejected", 1, None, None)
    assert runner.stages == UP_TO_EVALUATE
    passed = judged(store, refused.run_key, FLOOR.format(0.4))
    assert (passed.state, passed.judgement, passed.release, passed.run_url) == ("Released", 2, 1, "page")
    assert runner.stages == [*UP_TO_EVALUATE, Stage.infer, Stage.release]
    stricter = judged(store, refused.run_key, FLOOR.format(0.8))
    assert (stricter.state, stricter.release) == ("Released", 1)
    golden(part for part in gate_page(stricter, explain=True) if isinstance(part, str))
    assert len(runner.stages) == 7


def test_an_override_releases_and_is_seen_wherever_the_release_is(store, runner):
    refused = pipeline(store.uri, overrides=(*OVERRIDES, FLOOR.format(0.9)))
    with pytest.raises(ConfigError, match="--override NAME"):
        judged(store, refused.run_key, override="Ada")
    passed = judged(store, refused.run_key, override="Ada", reason="the holdout is odd")
    assert (passed.state, passed.release) == ("Released", 1)
    assert [each.name for each in passed.overrides] == ["Ada"]
    release = releases.current(store)
    assert release is not None
    assert release.overrides == passed.overrides


def test_an_override_during_a_hold_does_not_say_that_its_model_serves(store, runner):
    pipeline(store.uri, "2021-Q1", overrides=OVERRIDES)
    refused = pipeline(store.uri, "2021-Q2", overrides=(*OVERRIDES, FLOOR.format(0.9)))
    hold(store, "the sale")
    passed = judged(store, refused.run_key, override="Ada", reason="the holdout is odd")
    asked_again = judged(store, refused.run_key)
    for each in (passed, asked_again):
        assert (each.state, each.release) == ("Held", 3)
        assert "Release 3 is made, and becomes current" in each.sentence
        assert "millrace hold --off" in each.sentence
    current = releases.current(store)
    assert current is not None
    assert current.number == 2, "the refresh after the rejection"


def test_an_override_of_an_earlier_span_says_that_the_later_one_serves_on(store, runner):
    pipeline(store.uri, "2021-Q1", overrides=OVERRIDES)
    refused = pipeline(store.uri, "2021-Q2", overrides=(*OVERRIDES, FLOOR.format(0.9)))
    ingest(store, "2021-Q3")
    later = pipeline(store.uri, overrides=OVERRIDES)
    assert later.release is not None
    assert later.release == releases.current(store)
    passed = judged(store, refused.run_key, override="Ada", reason="the holdout is odd")
    assert passed.release == later.release.number + 1
    assert releases.current(store) == later.release
    assert f"of 2021-Q3 serves on; to serve this one: millrace rollback --to {passed.release}" in passed.sentence


def test_a_released_run_asked_again_with_stricter_gates_stays_released(store, runner):
    first = pipeline(store.uri, overrides=OVERRIDES)
    again = pipeline(store.uri, first.span, overrides=(*OVERRIDES, FLOOR.format(0.9)))
    assert (again.run_key, again.state, again.release) == (first.run_key, "Released", first.release)
    assert again.judgement is not None
    assert again.judgement.verdicts[0].answer == "fail"
    assert runner.stages.count("train") == 1
