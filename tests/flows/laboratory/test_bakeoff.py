"""The bake-off with a real Prefect server and workers that do no arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

import infra.compute.factory
from flows.laboratory.bakeoff import bakeoff
from flows.pipeline import pipeline
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import JobSpec, Waiter
from tasks.contracts.stages import Stage
from tasks.laboratory.bakeoff_report import BakeoffReport
from tests.support.fakes.fake_runner import FakeRunner

ENCODER = "model.scratch.layers=1"
SIDES = ("cpu", "fast:accelerator=cpu,train.precision=bf16")


class Killed(BaseException):
    """Ends the process that waits for the workers."""


class Killer(FakeRunner):
    """Ends the process in training number `at`."""

    at = 0

    def run(self, spec: JobSpec, waiter: Waiter, tries: int) -> None:
        if spec.stage is Stage.train and self.stages.count("train") + 1 == self.at:
            self.at = 0
            raise Killed
        super().run(spec, waiter, tries)


@pytest.fixture
def runner(store: DirectoryStore, short_delays: None, monkeypatch: pytest.MonkeyPatch) -> Killer:
    runner = Killer(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner


def bake(store: DirectoryStore, *overrides: str, sides: tuple[str, ...] = SIDES, seeds: int = 2) -> Any:
    return bakeoff(store.uri, "2021-Q1", sides, seeds, overrides=(ENCODER, *overrides))


def test_every_side_is_warmed_up_once_and_trained_with_each_seed(prefect, store, runner):
    report = bake(store)
    assert runner.stages == ["validate", "health", "health", "warmup", "warmup", "train", "train", "train", "train"]
    assert [side.name for side in report.sides] == ["cpu", "fast"]
    assert BakeoffReport.model_validate_json(store.read(f"bakeoffs/{report.key}/report.json")) == report
    page = store.read(report.page).decode()
    assert "recall@10 over seconds" in page
    assert prefect.last_run().name == "bake-off over 2021-Q1"
    assert "bakeoff" in {artifact.key for artifact in prefect.artifacts()}


def test_a_bake_off_changes_neither_lineage_nor_runs(store, runner):
    done = pipeline(store.uri, "2021-Q1", overrides=(ENCODER,))
    before = {key: store.read(key) for key in store.list("") if not key.startswith((".locks/", "runs/"))}
    bake(store, seeds=1)
    after = {key: store.read(key) for key in store.list("") if not key.startswith((".locks/", "runs/", "bakeoffs/"))}
    assert after == before
    assert [key for key in store.list("runs") if key.endswith("plan.json")] == [f"runs/{done.run_key}/plan.json"]


def test_one_that_was_killed_trains_the_rest_alone(store, runner):
    runner.at = 3
    with pytest.raises(Killed):
        bake(store)
    done = runner.stages.count("train")
    runner.specs.clear()
    report = bake(store)
    assert (done, runner.stages) == (2, ["train", "train"])
    assert [len(side.trainings) for side in report.sides] == [2, 2]


def test_another_price_or_another_seed_repeats_no_training(store, runner):
    first = bake(store, seeds=1)
    assert first.sides[0].dollars is None
    runner.specs.clear()
    priced = bake(store, "cost.dollars_per_worker_hour=3600", seeds=1)
    assert runner.stages == []
    assert priced.sides[0].dollars == pytest.approx(first.sides[0].billable_seconds)
    bake(store, seeds=2)
    assert runner.stages == ["train", "train"]
