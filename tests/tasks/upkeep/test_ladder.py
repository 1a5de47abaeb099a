"""The ladder by the real stages in this process, and by made-up ones that fail where a test wants it."""

from __future__ import annotations

import pytest

import infra.compute.factory
from infra.store.base import Store
from tasks.contracts.outcomes import Check
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import FINDINGS
from tasks.foundation.errors import CompileError, FailureClass, HostError
from tasks.runs.host_findings import Findings
from tasks.upkeep.ladder import climb, sizes
from tasks.upkeep.made_up import settings
from tasks.upkeep.smoke_report import SmokeReport
from tests.support.fakes.fake_runner import small_config
from tests.support.fakes.own_process import OwnProcess


def stored(store: Store, report: SmokeReport) -> SmokeReport:
    return SmokeReport.model_validate_json(store.read(f"smoke/{report.key}.json"))


def test_one_worker_on_a_processor_climbs_to_the_top(store, monkeypatch) -> None:
    runner = OwnProcess(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    spans, seen = store.list("spans"), []
    config = small_config("features.numeric=[price]", "model.interaction.kind=both", "train.precision=fp32")
    report = climb(store, config, seen.append)
    assert [rung.name for rung in report.rungs] == [
        "workspace and room",
        "arithmetic",
        "compilations",
        "a training step",
        "a checkpoint written",
        "the checkpoint read",
    ]
    assert report.passed
    assert all(rung.passed for rung in report.rungs)
    assert seen == [*report.rungs]
    assert stored(store, report) == report
    step, read = report.rungs[3], report.rungs[5]
    assert step.sentences[0].startswith("1 step in fp32, with a loss of ")
    assert read.sentences == ("another job trained on from step 1 to 2",)
    assert store.list("lineages") == [], "its checkpoints are deleted"
    assert store.list("spans") == spans, "no span is there that a pipeline would train on"


def test_all_machines_come_after_one(store, runner) -> None:
    report = climb(store, small_config("train.workers=4"))
    assert report.passed
    assert [spec.workers for spec in runner.specs] == [1, 1, 1, 1, 4, 4, 4, 4]
    assert runner.stages == ["health", "warmup", "train", "train"] * 2
    first, again = (spec.inputs for spec in runner.specs[2:4])
    assert first.parent is None
    assert again.parent is not None, "the second training begins at the checkpoint of the first"


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["train.workers=1"], (1,)),
        (["train.workers=64", "train.batch_rows=64", "compute=batch", "batch.processes_per_node=32"], (32, 64)),
        (["train.workers=2", "compute=batch", "batch.processes_per_node=2"], (2,)),
    ],
)
def test_the_ladder_begins_on_one_machine(overrides, expected) -> None:
    assert sizes(small_config(*overrides)) == expected


def test_the_settings_are_those_of_the_machines_alone(store) -> None:
    config = small_config(
        *("features.categorical=[locale]", "model.interaction.kind=both", "train.homogeneous=locale"),
        *("train.learning_rate=1.0", "health.all_reduce_mib=3", "retry.attempts=5", "compiler.optlevel=2"),
    )
    made = settings(config, "smoke-1", 2)
    assert (made.health, made.compiler, made.batch) == (config.health, config.compiler, config.batch)
    assert made.features.categorical == ()
    assert (made.retry.attempts, made.train.workers, made.train.batch_rows) == (1, 2, 64)


def test_a_failure_ends_it_and_says_where_to_look(store, runner) -> None:
    runner.fail(Stage.warmup, CompileError("graph MODULE_1 did not compile"))
    report = climb(store, small_config("train.workers=2"))
    assert runner.stages == ["health", "warmup"]
    assert (report.failure, stored(store, report).failure) == (FailureClass.COMPILE, FailureClass.COMPILE)
    last = report.rungs[-1]
    assert (last.name, last.passed, last.workers) == ("compilations", False, 1)
    assert last.sentences == ("COMPILE: graph MODULE_1 did not compile",)
    assert "compiler.target" in last.mend


def test_what_health_found_names_the_rung(store, runner, monkeypatch) -> None:
    checks = (
        Check.critical("store", True, "the workspace takes writes"),
        Check.critical("efa interfaces", False, "fi_info lists 0 EFA interfaces", "stop"),
    )

    def find(spec, waiter, tries) -> None:
        store.write(FINDINGS.of(spec), Findings(checks=checks).to_json())
        raise HostError("fi_info lists 0 EFA interfaces")

    monkeypatch.setattr(runner, "run", find)
    report = climb(store, small_config())
    assert [(rung.name, rung.passed) for rung in report.rungs] == [
        ("workspace and room", True),
        ("network cards", False),
    ]
    assert report.rungs[-1].sentences == ("fi_info lists 0 EFA interfaces",)


def test_a_job_that_never_came_to_its_checks_is_the_first_rung(store, runner) -> None:
    runner.fail(Stage.health, HostError("the image could not be pulled"))
    (only,) = climb(store, small_config()).rungs
    assert (only.name, only.sentences) == ("the first job", ("HOST: the image could not be pulled",))
    assert "docs/aws.md, step 2" in only.mend
