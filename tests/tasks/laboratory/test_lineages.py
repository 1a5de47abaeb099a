"""The lineages of a past: which checkpoint a run continues, and which releases are of its model."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.runs import Release
from tasks.laboratory.lineages import Lineages, read_lineages
from tasks.monitoring.history import read_history
from tasks.runs import releases
from tasks.runs.releases import CURRENT, Pointer
from tasks.runs.snapshot import Snapshot
from tests.support.workspace.lineages import go_back
from tests.support.workspace.past import write_past, write_run


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def lineages(store: DirectoryStore) -> Lineages:
    snapshot = Snapshot(store)
    return read_lineages(snapshot, read_history(snapshot))


def refresh(store: DirectoryStore, of: int, previous: int) -> Release:
    """The next release: the model of release `of`, made while `previous` serves."""
    base, number = releases.read(store, of), releases.last(store) + 1
    made = base.model_copy(
        update={"number": number, "previous": previous, "refreshed": of, "run_key": f"refresh-{number}"}
    )
    store.write(f"releases/{number}.json", made.to_json())
    store.write(CURRENT, Pointer(release=number).to_json())
    return made


def test_a_branch_continues_the_last_accepted_checkpoint(store: DirectoryStore) -> None:
    keys = write_past(store, 5, {2: ("Rejected", None)})
    go_back(store, keys, rejected=2, accepted=1, branch="main-after-1")
    found = lineages(store)
    parents = [step.parent.run_key if step.parent is not None else None for step in found.steps]
    assert parents == [None, keys[0], keys[1], keys[1], keys[3]]
    assert [step.begins for step in found.steps] == [True, False, False, False, False]
    assert found.branches["main-after-1"].of == "main"
    assert found.active == {"main-after-1"}


def test_refreshes_are_counted_with_the_model_that_they_keep(store: DirectoryStore) -> None:
    write_past(store, 2)
    for _ in range(3):
        refresh(store, of=2, previous=releases.last(store))
    first, second = (step.published for step in lineages(store).steps)
    assert first is not None
    assert second is not None
    assert (first.ranges, first.serves) == (((1, 1),), False)
    assert (second.ranges, second.refreshes, second.serves) == (((2, 5),), 3, True)


def test_refreshes_after_a_rollback_are_of_the_model_that_serves(store: DirectoryStore) -> None:
    write_past(store, 2)
    for previous in (2, 3, 4, 5, 6):
        refresh(store, of=2, previous=previous)
    for previous in (1, 8):
        refresh(store, of=1, previous=previous)
    write_run(store, 2)
    tenth = releases.read(store, 10)
    store.write("releases/10.json", tenth.model_copy(update={"previous": 1}).to_json())  # as before the last refreshes
    found = [step.published for step in lineages(store).steps]
    assert [(each.ranges, each.after) for each in found if each] == [
        (((1, 1), (8, 9)), None),
        (((2, 7),), None),
        (((10, 10),), 1),
    ]
