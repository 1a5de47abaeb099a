"""`millrace smoke`: what it prints, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

import infra.compute.factory
from infra.store.directory import DirectoryStore
from tasks.contracts.stages import Stage
from tasks.foundation.errors import CompileError
from tests.support.fakes.fake_runner import FakeRunner
from tests.support.processes import command


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    runner = FakeRunner(DirectoryStore(tmp_path / "workspace"))
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner


def test_every_rung_is_a_line_and_the_record_is_named(fake, capsys) -> None:
    done = command.call(capsys, "smoke", "--workspace", fake.store.uri)
    assert done.code == 0, done.err
    assert "ok    a training step, 1 worker on 1 machine\n" in done.out
    assert "every rung holds" in done.out
    (key,) = fake.store.list("smoke")
    assert f"record: {key}" in done.out


def test_a_broken_rung_has_the_exit_code_of_its_class(fake, capsys) -> None:
    fake.fail(Stage.warmup, CompileError("graph MODULE_1 did not compile"), times=2)
    done = command.call(capsys, "smoke", "--workspace", fake.store.uri)
    assert done.code == command.call(capsys, "smoke", "--json", "--workspace", fake.store.uri).code == 73
    assert "FAIL  compilations, 1 worker on 1 machine\n      COMPILE: graph MODULE_1 did not compile\n" in done.out
    assert "-> look at: is compiler.target" in done.out
