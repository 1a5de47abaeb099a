import json
import re
from pathlib import Path

import pytest

from infra.store import DirectoryStore
from tasks.contracts import CompileRef, Inputs, JobSpec, Outcome, ShapeTiming, WarmupOutcome
from tasks.errors import ConfigError
from tasks.optlevels import compare_levels
from tests.support.fake_runner import FakeRunner, commit_files, small_config

LOSSES = {1: (2.0, 1.0), 2: (2.0, 1.001), 3: (2.0, 0.9)}
SECONDS = {1: 10.0, 2: 40.0, 3: 90.0}


class CompilingRunner(FakeRunner):
    """Compiles slower the higher the level is."""

    def _outcome(self, spec: JobSpec, inputs: Inputs) -> Outcome:
        outcome = super()._outcome(spec, inputs)
        level = spec.config.compiler.optlevel
        if not isinstance(outcome, WarmupOutcome) or level is None:
            return outcome
        ref = CompileRef(key=f"key{level}", graphs=12, seconds=SECONDS[level])
        commit_files(self.store, ref.prefix, {"graph": "g"}, "compile", complete=True)
        step = ShapeTiming(query_tokens=8, item_tokens=8, first_step_seconds=1.0, step_seconds=0.4 / level)
        other = step.model_copy(update={"step_seconds": 0.2 / level})
        changes = {"compiled": ref, "shapes": (step, other), "trial_losses": LOSSES[level]}
        return outcome.model_copy(update={**changes, "trial_metrics": {"recall@10": 0.5 - 0.1 * (level == 3)}})


@pytest.fixture
def runner(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> CompilingRunner:
    runner = CompilingRunner(store)
    monkeypatch.setattr("infra.runner.make_runner", lambda config, store, stage: runner)
    return runner


def test_each_level_is_warmed_up_for_once_and_nothing_is_trained(store, runner):
    config = small_config("accelerator=xla")
    report = compare_levels(store, config, "2021-Q2", [1, 2, 3])
    assert runner.stages == ["validate", "warmup", "warmup", "warmup"]
    assert [spec.config.compiler.optlevel for spec in runner.specs[1:]] == [1, 2, 3]
    assert len({spec.run_key for spec in runner.specs[1:]}) == 3
    assert not store.list("lineages")
    assert compare_levels(store, config, "2021-Q2", [1, 2, 3]) == report
    assert len(runner.stages) == 4, "asked again, it is on record"


def test_the_table_has_cost_gain_and_difference(store, runner):
    report = compare_levels(store, small_config("accelerator=xla"), "2021-Q2", [1, 2, 3])
    found = [(line.level, line.graphs, line.compile_seconds, line.step_seconds) for line in report.levels]
    assert found == [(1, 12, 10.0, 0.3), (2, 12, 40.0, 0.15), (3, 12, 90.0, 0.1)]
    assert [line.loss_difference for line in report.levels] == pytest.approx([0.0, 0.001 / 1.001, 0.1])
    assert [line.metric_difference for line in report.levels] == pytest.approx([0.0, 0.0, 0.2])


@pytest.mark.parametrize(
    ("accelerator", "levels", "complaint"),
    [
        ("cpu", [1], "accelerator: cpu compiles nothing ahead of time"),
        ("xla", [1, 4], r"\[4\] is no level; give some of 1, 2, 3"),
        ("xla", [], "is no level"),
    ],
)
def test_what_can_not_be_compared_is_refused(store, runner, accelerator, levels, complaint):
    with pytest.raises(ConfigError, match=complaint):
        compare_levels(store, small_config(f"accelerator={accelerator}"), "2021-Q2", levels)
    assert not runner.stages


def test_the_documented_json_is_what_comes_out(store, runner):
    docs = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text()
    found = re.search(r"^### `millrace warmup --json`\n.*?^```json\n(.*?)^```", docs, re.M | re.S)
    assert found
    report = compare_levels(store, small_config("accelerator=xla"), "2021-Q2", [2])
    real, documented = json.loads(report.to_json()), json.loads(found[1])
    assert list(real) == list(documented)
    assert list(real["levels"][0]) == list(documented["levels"][0])
