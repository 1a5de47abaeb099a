"""`millrace publish`, `rollback` and `status` with targets, in this process; workers do no arithmetic."""

from __future__ import annotations

import functools
import json
from pathlib import Path

import pytest

import infra.compute.factory
from flows.presentation.wording import BY_NARROW, OF_INDEX, WITHOUT_INDEX
from infra.store.directory import DirectoryStore
from tasks.contracts.search import NarrowRecall
from tasks.contracts.stages import Chore
from tasks.contracts.workspace import REPORT
from tasks.foundation.errors import StoreError
from tasks.runs import releases, served_targets
from tests.support.fakes.fake_runner import FakeRunner, ingest
from tests.support.processes import command
from tests.support.processes.command import Command
from tests.support.workspace.releases import write_release

TARGETS = "publish.targets=[{kind: lancedb, name: look, uri: l}, {kind: qdrant, name: shop, url: q}]"
SMALL = ("--set", "model.scratch.layers=1")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    """Two releases, whose model and vectors a rollback can go to."""
    store = DirectoryStore(tmp_path / "workspace")
    ingest(store, "2026-01", "2026-02")
    for number in (1, 2):
        release = write_release(store, number)
        store.write(f"{release.model_prefix}/MANIFEST.json", store.read(f"{release.vectors_prefix}/MANIFEST.json"))
        for name in range(4):
            part = f"part-{name:05d}.parquet"
            store.write(f"{release.model_prefix}/{part}", store.read(f"{release.vectors_prefix}/{part}"))
    monkeypatch.setenv("MILLRACE_WORKSPACE", store.uri)
    return store


@pytest.fixture
def runner(store: DirectoryStore, monkeypatch: pytest.MonkeyPatch) -> FakeRunner:
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda config, store, stage: runner)
    return runner


@pytest.fixture
def millrace(capsys: pytest.CaptureFixture[str]) -> Command:
    return functools.partial(command.call, capsys)


def test_the_current_release_is_published_and_a_rollback_takes_the_targets_along(store, runner, millrace):
    published = millrace("publish", "--set", TARGETS, *SMALL, "--json")
    assert [each["release"] for each in json.loads(published.out)["targets"]] == [2, 2]
    runner.specs.clear()
    rolled_back = millrace("rollback", "--json", "--set", TARGETS, *SMALL)
    assert rolled_back.code == 0, rolled_back.err
    assert [each["release"] for each in json.loads(rolled_back.out)["targets"]] == [1, 1]
    assert [spec.run_key for spec in runner.specs] == ["publish-1-look", "publish-1-shop"]
    assert "release 1 in look_r1_00000000" in millrace("status").out
    assert "NOT THE CURRENT" not in millrace("status").out


def test_a_target_that_a_rollback_can_not_reach_is_named_by_the_command_and_by_status(store, runner, millrace):
    millrace("publish", "--set", TARGETS, *SMALL)
    runner.fail(Chore.publish, StoreError("no route to host"))
    rolled_back = millrace("rollback", "--set", TARGETS, *SMALL)
    assert rolled_back.code == 74
    assert "release 1 is current" in rolled_back.err
    assert "release 2: no route to host" in rolled_back.err
    shown = millrace("status").out
    assert f"recall@10 1.0000 {OF_INDEX}; NOT THE CURRENT RELEASE, 1" in shown
    assert shown.count("NOT THE CURRENT") == 1
    assert millrace("publish", "--set", TARGETS, *SMALL).code == 0
    assert "NOT THE CURRENT" not in millrace("status").out


def test_a_target_is_taken_over_only_on_request(store, runner, millrace):
    for words in ((), ("--take-over",)):
        assert millrace("publish", *words, "--set", TARGETS, *SMALL).code == 0
    assert [spec.inputs.take_over for spec in runner.specs] == [False, False, True, True]


def test_recall_of_an_index_is_not_said_of_a_target_without_one(store, runner, millrace):
    millrace("publish", "--set", TARGETS, *SMALL)
    served = served_targets.of_target(store, "shop")
    assert served is not None
    narrow = NarrowRecall(queries=9, recall_at_10=0.7, whole=0.7125, loss_low=-0.1, loss_high=0.1)
    served_targets.note(store, served.model_copy(update={"index": None, "narrow": narrow}))
    look, shop = (line for line in millrace("status").out.splitlines() if line.startswith("target "))
    assert OF_INDEX in look
    assert WITHOUT_INDEX in shop
    assert OF_INDEX not in shop
    assert f"0.7000 {BY_NARROW}" in shop
    assert BY_NARROW not in look


def test_another_release_is_published_on_request(store, runner, millrace):
    assert millrace("publish", "--release", "1", "--set", TARGETS, *SMALL).code == 0
    assert [each.release for each in served_targets.of_all_targets(store)] == [1, 1]
    assert "2: millrace publish" in millrace("status").out


def test_the_report_of_the_run_is_written_again(store, runner, millrace, monkeypatch):
    written = []
    monkeypatch.setattr("flows.cli.releases.write_run_report", lambda store, key: written.append(key))
    assert millrace("publish", "--set", TARGETS, *SMALL).code == 0
    assert written == []  # as of a refresh, which has none
    key = releases.read(store, 2).run_key
    store.write(REPORT.key(run=key), b"it failed")
    runner.fail(Chore.publish, StoreError("no route to host"))
    assert millrace("publish", "--set", TARGETS, *SMALL).code == 74
    assert written == [key]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("publish",), "publish.targets is empty: name where to publish to, see docs/publish.md"),
        (("publish", "--release", "7", "--set", TARGETS), "there is no release 7; there are 1"),
    ],
)
def test_what_can_not_be_published_is_refused(store, runner, millrace, arguments, message):
    refused = millrace(*arguments, *SMALL)
    assert refused.code == 78
    assert message in refused.err
    assert runner.specs == []


def test_a_failed_publication_is_gone_on_with_by_the_settings_that_were_typed(store, runner, millrace, tmp_path):
    file = tmp_path / "own settings.yaml"
    file.write_text("publish: {targets: [{kind: lancedb, name: look, uri: l}]}\n")
    runner.fail(Chore.publish, StoreError("no route to host"))
    said = millrace("publish", "--config", str(file), *SMALL).err
    assert f"millrace publish --workspace {store.uri} --config '{file}' --set model.scratch.layers=1" in said


def test_a_rollback_knows_addresses_and_secrets_by_its_own_settings_alone(store, runner, millrace):
    """Whoever may write to the workspace would choose which variable goes to which address."""
    millrace("publish", "--set", TARGETS, *SMALL)
    runner.specs.clear()
    for key in [*store.list("releases/targets"), *store.list("publications")]:
        if key.endswith(".json"):
            store.write(
                key, store.read(key).replace(b'"url": "q"', b'"url": "evil", "api_key_env": "AWS_SECRET_ACCESS_KEY"')
            )
    look = "publish.targets=[{kind: lancedb, name: look, uri: other}]"
    rolled_back = millrace("rollback", "--set", look, *SMALL)
    assert [spec.run_key for spec in runner.specs] == ["publish-1-look"]
    assert [target.uri for target in runner.specs[0].config.publish.targets] == ["other"]
    assert rolled_back.code == 78
    assert "release 1 is current" in rolled_back.err
    assert "shop (qdrant) " in rolled_back.err
    assert "millrace publish" in rolled_back.err
    assert (current := releases.current(store)) is not None
    assert current.number == 1


def test_a_rollback_without_targets_of_its_own_names_those_that_stay(store, runner, millrace):
    millrace("publish", "--set", TARGETS, *SMALL)
    runner.specs.clear()
    rolled_back = millrace("rollback")
    assert rolled_back.code == 78
    assert runner.specs == []
    assert "look (lancedb)" in rolled_back.err
    assert "shop (qdrant)" in rolled_back.err
