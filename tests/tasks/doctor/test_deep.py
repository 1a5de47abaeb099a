"""The deep checks by the real stages in this process, and by made-up ones that fail where a test wants it."""

from __future__ import annotations

import pytest

import infra.compute.factory
from tasks.contracts.outcomes import Check
from tasks.contracts.stages import Stage
from tasks.contracts.workspace import FINDINGS
from tasks.doctor.deep import deep_findings, settings, sizes
from tasks.foundation.errors import CompileError, FailureClass, HostError
from tasks.runs.host_records import Findings
from tests.support.fakes.fake_runner import small_config
from tests.support.fakes.own_process import OwnProcess


def test_one_worker_on_a_processor_passes_all(store, monkeypatch, golden) -> None:
    runner = OwnProcess(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    spans = store.list("spans")
    config = small_config("features.numeric=[price]", "model.interaction.kind=both", "train.precision=fp32")
    findings = list(deep_findings(store, config))
    assert [one.name.partition(",")[0] for one in findings[:2]] == ["workspace and room", "arithmetic"]
    golden((f"{one.name}: {one.found}" for one in findings[2:]), hide=r"\d{8}-\d{6}|\b[\d.]+ s\b|(?<=a loss of )\S+")
    assert {(finding.outcome, finding.mend, finding.failure) for finding in findings} == {("ok", "", None)}
    assert store.list("lineages") == [], "its checkpoints are deleted"
    assert store.list("spans") == spans, "no span is there that a pipeline would train on"


def test_all_machines_come_after_one(store, runner) -> None:
    assert all(finding.outcome == "ok" for finding in deep_findings(store, small_config("train.workers=4")))
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
def test_one_machine_comes_first(overrides, expected) -> None:
    assert sizes(small_config(*overrides)) == expected


def test_the_settings_are_those_of_the_machines_alone(store) -> None:
    config = small_config(
        *("features.categorical=[locale]", "model.interaction.kind=both", "train.batch_by=locale"),
        *("train.learning_rate=1.0", "health.all_reduce_mib=3", "retry.attempts=5", "compiler.optlevel=2"),
    )
    made = settings(config, "deep-1", 2)
    assert (made.health, made.compiler, made.batch) == (config.health, config.compiler, config.batch)
    assert made.features.categorical == ()
    assert (made.retry.attempts, made.train.workers, made.train.batch_rows) == (1, 2, 64)


def test_a_failure_ends_them_and_says_where_to_look(store, runner) -> None:
    runner.fail(Stage.warmup, CompileError("graph MODULE_1 did not compile"))
    *_, failed, price = deep_findings(store, small_config("train.workers=2"))
    assert runner.stages == ["health", "warmup"]
    assert (failed.name, failed.outcome, failed.failure) == ("compilations, 1 worker", "FAIL", FailureClass.COMPILE)
    assert "MODULE_1" in failed.found
    assert "compiler.target" in failed.mend
    assert price.outcome == "ok"


def test_refused_hosts_are_named_by_the_check_that_failed(store, runner, monkeypatch) -> None:
    checks = (
        Check.critical("store", True, "the workspace takes writes"),
        Check.critical("efa interfaces", False, "fi_info lists 0 EFA interfaces", "stop"),
    )

    def find(spec, waiter, tries) -> None:
        store.write(FINDINGS.of(spec), Findings(checks=checks).to_json())
        raise HostError("fi_info lists 0 EFA interfaces")

    monkeypatch.setattr(runner, "run", find)
    room, cards, _ = deep_findings(store, small_config())
    assert (room.outcome, room.failure) == ("ok", None)
    assert (cards.name, cards.outcome, cards.failure) == ("network cards, 1 worker", "FAIL", FailureClass.HOST)
    assert "0 EFA interfaces" in cards.found


def test_a_job_that_never_came_to_its_checks_is_named(store, runner) -> None:
    runner.fail(Stage.health, HostError("the image could not be pulled"))
    only, _ = deep_findings(store, small_config())
    assert (only.name.split(",")[0], only.found[:5]) == ("the first job", "HOST:")
    assert "docs/aws.md, step 2" in only.mend
