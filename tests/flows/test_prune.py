"""The flow that lists or deletes what nothing needs, under a real Prefect server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import State

from flows.prune import prune
from infra.store.directory import DirectoryStore
from tasks.contracts.kinds import lineage_lock
from tasks.runs import releases
from tests.support.fakes.fake_runner import ingest
from tests.support.processes.prefect_server import PrefectServer
from tests.support.workspace.backfills import fake_workers, run_spans

SPANS = ("2021-Q1", "2021-Q2", "2021-Q3")
ONE = ("prune.releases=1", "prune.models=1", "prune.days=0")


@pytest.fixture
def store(prefect: PrefectServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DirectoryStore]:
    """With three releases, of which the oldest needs no files."""
    store = DirectoryStore(tmp_path)
    fake_workers(store, monkeypatch)
    ingest(store, *SPANS)
    run_spans(store, *SPANS)
    with prefect.in_use():
        yield store


def ended(store: DirectoryStore, *settings: str) -> State:
    return prune(store.uri, overrides=(*ONE, *settings), return_state=True)


def test_it_lists_until_the_settings_let_it_delete(prefect: PrefectServer, store: DirectoryStore) -> None:
    vectors = releases.read(store, 1).vectors_prefix
    listed = ended(store)
    assert listed.name == "Listed"
    assert "would be deleted" in (listed.message or "")
    assert "set prune.delete to true" in (listed.message or "")
    assert store.list(vectors)
    (page,) = [str(artifact.data) for artifact in prefect.artifacts() if artifact.key == "prune"]
    assert f"| vectors | {vectors} |" in page
    done = ended(store, "prune.delete=true")
    assert (done.name, store.list(vectors)) == ("Completed", [])
    assert releases.pruned(store) == {1}


def test_it_leaves_a_workspace_alone_on_which_a_process_works(store: DirectoryStore) -> None:
    with store.lock(lineage_lock("main")):
        busy = ended(store, "prune.delete=true")
    assert busy.name == "Busy"
    assert "lineages/main" in (busy.message or "")
    assert releases.pruned(store) == set()


def test_by_default_releases_of_three_days_are_kept(store: DirectoryStore) -> None:
    state = prune(store.uri, overrides=("prune.delete=true",), return_state=True)
    assert (state.message or "").startswith("0 folders")
