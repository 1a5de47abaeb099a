"""The workspace's table: each key of a finished workspace matches one row, in a directory and in a bucket."""

from __future__ import annotations

import re

import pytest

import infra.compute.factory
from infra.store.factory import open_store
from tasks.contracts import workspace
from tasks.contracts.runs import RunState
from tasks.contracts.workspace import TABLE, kind_of
from tasks.planning.next_run import plan_run
from tasks.runs import invocations
from tests.support.fakes.fake_runner import FakeRunner, ingest, ingest_feed, small_config
from tests.support.fakes.stages import carry_out, refreshed
from tests.support.workspace.stores import STORES


def test_each_key_is_found_again() -> None:
    for kind in TABLE:
        names = dict(re.findall(r"\{(\w+)(?::(\w+))?\}", kind.pattern))
        fields = {name: 7 if how.endswith("d") else f"some-{name}" for name, how in names.items()}
        key = kind.key(**fields)
        assert kind_of(f"{key}/part-00000.parquet" if kind.is_folder else key) == (kind, fields)


def test_a_run_a_refresh_and_a_publication_have_folders_of_their_own() -> None:
    for run, folder in (("4f2a", "runs"), ("refresh-4f2a", "refreshes"), ("publish-3-look", "publications")):
        key = workspace.PLAN.key(run=run)
        assert key == f"{folder}/{run}/plan.json"
        assert kind_of(key) == (workspace.PLAN, {"run": run})
    with pytest.raises(ValueError, match="no row"):
        kind_of("runs/refresh-4f2a/plan.json")


def test_files_of_one_field_are_listed_in_one_folder() -> None:
    assert workspace.SKIP.within(lineage="main") == "lineages/main/skipped"
    assert workspace.LEDGER.within(run="4f2a", stage="train") == "runs/4f2a/train"
    assert workspace.RELEASE.within() == "releases"


def test_a_file_of_no_kind_is_named() -> None:
    with pytest.raises(ValueError, match=r"runs/4f2a/plan\.yaml"):
        kind_of("runs/4f2a/plan.yaml")


@pytest.mark.parametrize("place", STORES)
def test_every_key_of_a_finished_workspace_has_one_row(
    place: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = STORES[place](request)
    runner = FakeRunner(store)
    monkeypatch.setattr(infra.compute.factory, "make_runner", lambda *_: runner)
    ingest(store, "2026-W46")
    plan = plan_run(store, small_config())
    began = invocations.begin(store, plan, flow_run="flow", expected_seconds=60.0)
    carry_out(plan)
    invocations.end(store, began, RunState.RELEASED)
    ingest_feed(store, "2026-11-16")
    refreshed(store)
    kinds = {kind_of(key)[0] for key in open_store(store.uri).list("")}
    assert {workspace.SPAN, workspace.LEDGER, workspace.RESULT, workspace.CHECKPOINT, workspace.RELEASE} < kinds
