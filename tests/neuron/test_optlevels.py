from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import Inputs, JobSpec
from tasks.contracts.outcomes import Outcome, WarmupOutcome
from tasks.contracts.references import CompileRef
from tasks.contracts.usage import ShapeTiming
from tasks.foundation.errors import ConfigError
from tests.neuron.optlevels import compare_levels
from tests.support.fakes.fake_runner import FakeRunner, commit_files, ingest, small_config

LOSSES = {1: (2.0, 1.0), 2: (2.0, 1.001), 3: (2.0, 0.9)}
SECONDS = {1: 10.0, 2: 40.0, 3: 90.0}


class CompilingRunner(FakeRunner):
    """Compiles slower at a higher level."""

    def _outcome(self, spec: JobSpec, inputs: Inputs) -> Outcome:
        outcome = super()._outcome(spec, inputs)
        level = spec.config.compiler.optlevel
        if not isinstance(outcome, WarmupOutcome) or level is None:
            return outcome
        ref = CompileRef(key=f"key{level}", graphs=12, seconds=SECONDS[level])
        commit_files(self.store, ref.prefix, {"graph": "g"}, "compile", complete=True)
        step = ShapeTiming(sequences=8, tokens=16, first_step_seconds=1.0, step_seconds=0.4 / level)
        other = step.model_copy(update={"step_seconds": 0.2 / level})
        changes = {"compiled": ref, "shapes": (step, other), "trial_losses": LOSSES[level]}
        return outcome.model_copy(update={**changes, "trial_metrics": {"recall@10": 0.5 - 0.1 * (level == 3)}})


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    store = DirectoryStore(tmp_path / "workspace")
    ingest(store, "2021-Q1", "2021-Q2", "2021-Q3")
    return store


@pytest.fixture
def runner(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> CompilingRunner:
    runner = CompilingRunner(store)
    monkeypatch.setattr("infra.compute.factory.make_runner", lambda config, store, stage: runner)
    return runner


def test_each_level_is_warmed_up_once_and_nothing_is_trained(store, runner):
    config = small_config("accelerator=xla")
    report = compare_levels(store, config, "2021-Q2", [1, 2, 3])
    assert runner.stages == ["validate", "warmup", "warmup", "warmup"]
    assert [spec.config.compiler.optlevel for spec in runner.specs[1:]] == [1, 2, 3]
    assert len({spec.run_key for spec in runner.specs[1:]}) == 3
    assert not store.list("lineages")
    assert compare_levels(store, config, "2021-Q2", [1, 2, 3]) == report
    assert len(runner.stages) == 4, "the second time it is read from the record"


def test_the_report_has_the_times_and_differences_of_each_level(store, runner):
    report = compare_levels(store, small_config("accelerator=xla"), "2021-Q2", [1, 2, 3])
    found = [(line.level, line.graphs, line.compile_seconds, line.step_seconds) for line in report.levels]
    assert found == [(1, 12, 10.0, 0.3), (2, 12, 40.0, 0.15), (3, 12, 90.0, 0.1)]
    assert [line.loss_difference for line in report.levels] == pytest.approx([0.0, 0.001 / 1.001, 0.1])
    assert [line.metric_difference for line in report.levels] == pytest.approx([0.0, 0.0, 0.2])


@pytest.mark.parametrize(
    ("accelerator", "levels", "complaint"),
    [
        ("cpu", [1], "accelerator: cpu compiles nothing ahead of time"),
        ("xla", [1, 4], "unknown level 4; give some of 1, 2, 3"),
        ("xla", [], "no level given"),
    ],
)
def test_an_impossible_comparison_is_refused(store, runner, accelerator, levels, complaint):
    with pytest.raises(ConfigError, match=complaint):
        compare_levels(store, small_config(f"accelerator={accelerator}"), "2021-Q2", levels)
    assert not runner.stages


def test_one_step_would_give_compile_time_as_step_time(store, runner):
    config = small_config("accelerator=xla", "warmup.steps=1")
    with pytest.raises(ConfigError, match=r"--set warmup\.steps=4"):
        compare_levels(store, config, "2021-Q2", [1, 2])
    assert not runner.stages
