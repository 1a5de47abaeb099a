"""The parity flow with a real Prefect server and workers that do no arithmetic. Takes about half a minute."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np
import pytest
from prefect.exceptions import ParameterTypeError

import infra.compute.factory
from flows.laboratory.parity import parity
from flows.pipeline import pipeline
from infra.store.base import Conflict
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import JobSpec, TrainInputs
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import CurvePoint
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import ANSWERS
from tasks.foundation.errors import ConfigError, HostError
from tasks.laboratory.parity_report import ParityReport
from tasks.runs import ledger
from tests.support.fakes.fake_runner import FakeRunner
from tests.support.measures.results import write_answers

ENCODER = "model.scratch.layers=1"
TASKS = ["validate 2021-Q1"] + [
    f"{stage} 2021-Q1 ({side})" for stage in ("health", "warmup", "train") for side in ("cpu", "xla")
]


class TwoDevices(FakeRunner):
    """On `xla` the last evaluation gives `drift` times the metrics of other devices."""

    drift = 1.0
    scattered = False

    def _train(self, spec: JobSpec, inputs: TrainInputs) -> TrainOutcome:
        outcome = super()._train(spec, inputs)
        if spec.config.accelerator != "xla":
            return outcome.model_copy(update={"answers_key": self._answers(spec, self.metrics["recall@10"])})
        last = {name: value * self.drift for name, value in self.metrics.items()}
        curve = (*outcome.curve[:-1], CurvePoint(step=outcome.last_step, metrics=last))
        return outcome.model_copy(update={"curve": curve, "answers_key": self._answers(spec, last["recall@10"])})

    def _answers(self, spec: JobSpec, recall: float) -> str:
        """The first rows find their item; if `scattered`, 20 others do on xla."""
        ranks = np.where(np.arange(2000) < 2000 * recall, 1, 20)
        if self.scattered and spec.config.accelerator == "xla":
            ranks[:20], ranks[-20:] = 20, 1
        return write_answers(self.store, ANSWERS.of(spec), ranks)


@pytest.fixture
def runner(store: DirectoryStore, short_delays: None, monkeypatch: pytest.MonkeyPatch) -> TwoDevices:
    runner = TwoDevices(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner


def compare(store: DirectoryStore, span: str = "2021-Q1", *overrides: str, **sides: Any) -> Any:
    return parity(store.uri, span, overrides=(ENCODER, *overrides), **sides)


def test_both_sides_are_trained_and_agree(prefect, store, runner):
    report = compare(store)
    assert report.state == "Agreed"
    assert (report.left.accelerator, report.right.accelerator) == ("cpu", "xla")
    assert [(point.step, point.metric) for point in report.points[::2]] == [(0, "recall@10"), (10, "recall@10")]
    seen = prefect.last_run()
    assert (seen.name, seen.state_name) == ("2021-Q1: cpu and xla", "Completed")
    tasks = prefect.task_runs(seen, 7)
    assert [task.name for task in tasks] == TASKS
    assert {task.state_name for task in tasks} == {"Completed"}
    assert ParityReport.model_validate_json(store.read(f"parity/{report.key}/report.json")) == report
    assert store.exists(f"parity/{report.key}/curves.svg")


def test_both_sides_see_the_same_rows_from_the_same_start(store, runner):
    pipeline(store.uri, "2021-Q1", overrides=(ENCODER,))
    runner.specs.clear()
    report = compare(store, "2021-Q2")
    assert runner.stages == ["validate", "health", "health", "warmup", "warmup", "train", "train"]
    left, right = runner.specs[-2:]
    assert left.inputs == right.inputs
    assert isinstance(left.inputs, TrainInputs)
    assert left.inputs.parent == report.parent
    assert report.parent is not None
    assert (report.parent.prefix, report.lineage) == ("lineages/main/step-00000010", "main")


def test_a_comparison_changes_neither_lineage_nor_runs(store, runner):
    done = pipeline(store.uri, "2021-Q1", overrides=(ENCODER,))
    before = {key: store.read(key) for key in store.list("") if not key.startswith((".locks/", "runs/"))}
    compare(store)
    after = {key: store.read(key) for key in store.list("") if not key.startswith((".locks/", "runs/", "parity/"))}
    assert after == before
    assert [key for key in store.list("runs") if key.endswith("plan.json")] == [f"runs/{done.run_key}/plan.json"]
    again = pipeline(store.uri, "2021-Q1", overrides=(ENCODER,))
    assert (again.release, again.cached) == (done.release, tuple(Stage))


def test_comparing_again_trains_nothing_and_gives_the_same_report(prefect, store, runner):
    first = compare(store)
    files = {key: store.read(key) for key in store.list("parity")}
    runner.specs.clear()
    assert compare(store) == first
    assert runner.specs == []
    assert {key: store.read(key) for key in store.list("parity")} == files
    assert {task.state_name for task in prefect.task_runs(prefect.last_run(), 7)} == {"Cached"}
    assert {artifact.type for artifact in prefect.artifacts()} == {"markdown", "table"}


def test_a_third_accelerator_trains_only_itself(store, runner):
    compare(store)
    runner.specs.clear()
    assert compare(store, left="cuda", right="cpu").right.accelerator == "cpu"
    assert [(spec.stage, spec.config.accelerator) for spec in runner.specs] == [
        (stage, "cuda") for stage in (Stage.health, Stage.warmup, Stage.train)
    ]


def test_sides_that_do_not_agree_end_as_rejected_with_their_report(prefect, store, runner):
    runner.drift = 0.8
    for _ in range(2):
        state = parity(store.uri, "2021-Q1", overrides=(ENCODER,), return_state=True)
        assert state.is_completed()
        assert state.name == "Rejected"
        report = state.result()
        assert isinstance(report, ParityReport)
        assert report.state == "Rejected"
        assert state.message == report.sentence
        assert "at any step is 20 %" in report.sentence
        assert prefect.last_run().state_name == "Rejected"
    assert compare(store).state == "Rejected"


def test_sides_that_differ_by_chance_end_as_undecided(prefect, store, runner):
    runner.scattered = True
    state = parity(store.uri, "2021-Q1", overrides=(ENCODER,), return_state=True)
    assert (state.name, state.is_completed()) == ("Undecided", True)
    assert "rows would be needed" in str(state.message)
    assert prefect.last_run().state_name == "Undecided"


def test_the_page_shows_verdict_and_plot_and_the_table_every_point(prefect, store, runner):
    runner.drift = 0.9
    report = compare(store)
    made = {artifact.type: artifact for artifact in prefect.artifacts()}
    page, table = made["markdown"], made["table"]
    assert (page.key, table.key) == ("parity-cpu-xla", "parity-cpu-xla-points")
    text = str(page.data)
    assert text.startswith("# Rejected\n")
    found = re.search(r"!\[[^]]+\]\(data:image/svg\+xml;base64,([^)]+)\)", text)
    assert found
    assert base64.b64decode(found[1]) == store.read(report.plot)
    assert "| recall@10 | 10 | 0.5 | 0.45 | 10 % |" in text
    assert "| loss | 10 | 1.5 | 1.5 | 0 % |" in text
    assert report.plot in text
    rows = json.loads(str(table.data))
    assert len(rows) == len(report.points) == 4
    assert rows[2] == {
        "step": 10, "metric": "recall@10", "left": "0.5", "right": "0.45", "relative difference": "10 %",
    }  # fmt: skip


def test_a_transient_failure_is_tried_again(store, runner):
    runner.fail(Stage.train, HostError("the machine went away"))
    assert compare(store).state == "Agreed"
    assert len([record for record in ledger.records(store) if record.failure]) == 1


def test_a_side_that_cannot_warm_up_stops_both_before_training(store, runner):
    runner.fail(Stage.warmup, ConfigError("no such device"))
    with pytest.raises(ConfigError, match="no such device"):
        compare(store)
    assert "train" not in runner.stages


def test_a_comparison_locks_itself_but_not_the_lineage(store, runner, impatient):
    compare(store)
    (lock,) = {path.name for path in store.path(".locks").glob("lineages.*") if "sides" in path.name}
    with store.lock(lock.replace("lineages.", "lineages/")):
        with pytest.raises(Conflict, match="is in use by process"):
            compare(store)
        assert pipeline(store.uri, "2021-Q1", overrides=(ENCODER,)).state == "Released"
    with store.lock("lineages/main.run"):
        assert compare(store).state == "Agreed"


@pytest.mark.parametrize("sides", [{"left": "tpu"}, {"right": "gpu"}])
def test_an_unknown_accelerator_runs_nothing(store, runner, sides: dict[str, str]):
    with pytest.raises(ParameterTypeError, match="'cpu', 'cuda', 'neuron'"):
        compare(store, **sides)
    assert store.list("runs") == []
