"""A prune beside runs, rollbacks and another prune, and after one that was killed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from infra.store.base import Conflict
from infra.store.directory import DirectoryStore
from infra.store.kernel_lock import KernelLock
from infra.store.lease import LostLease
from infra.store.manifest import MissingFolder, read_manifest
from tasks.contracts.pruning import PrunePlan
from tasks.contracts.workspace import CLOSED_NUMBER, RELEASE
from tasks.foundation.errors import ConfigError, SupersededError
from tasks.planning.next_run import plan_run
from tasks.prune.prune_plan import plan_prune
from tasks.runs import lineage, releases
from tasks.runs.rollback import rollback
from tests.support.fakes.fake_runner import small_config
from tests.support.fakes.stages import carry_out
from tests.tasks.prune.six_months import pruned


@pytest.mark.parametrize("what", ["run", "refresh"])
def test_nothing_is_deleted_while_a_process_works(store, runner, what):
    before = store.sizes("")
    with store.lock(f"lineages/main.{what}"), pytest.raises(Conflict):
        pruned(store)
    assert {key: size for key, size in store.sizes("").items() if not key.startswith(".locks/")} == {
        key: size for key, size in before.items() if not key.startswith(".locks/")
    }


class Meanwhile(DirectoryStore):
    """A store in which something happens before a delete or after a write."""

    before_delete: Callable[[str], None] = staticmethod(lambda key: None)
    after_write: Callable[[str], None] = staticmethod(lambda key: None)

    def delete(self, prefix: str) -> None:
        self.before_delete(prefix)
        super().delete(prefix)

    def write(self, key: str, data: bytes) -> None:
        super().write(key, data)
        self.after_write(key)


def test_a_prune_that_lost_a_lineage_deletes_nothing_more(store, runner, monkeypatch):
    before = store.sizes("vectors") | store.sizes("lineages")
    monkeypatch.setattr(KernelLock, "confirm", lambda lock: raise_lost())
    with pytest.raises(SupersededError):
        pruned(store)
    assert store.sizes("vectors") | store.sizes("lineages") == before


def raise_lost() -> None:
    raise LostLease("the lease was lost to process 7 on elsewhere")


def test_a_folder_loses_its_manifest_first_and_a_killed_prune_goes_on(store, runner):
    disturbed = Meanwhile(store.root)
    vectors = releases.read(store, 1).vectors_prefix

    def die(key: str) -> None:
        if key == vectors:
            raise KeyboardInterrupt

    disturbed.before_delete = die
    with pytest.raises(KeyboardInterrupt):
        pruned(disturbed)
    with pytest.raises(MissingFolder):
        read_manifest(store, vectors)
    assert store.list(vectors), "killed in the middle"
    assert 1 in releases.pruned(store)
    pruned(store)
    assert store.list(vectors) == []


def test_a_checkpoint_killed_in_the_middle_still_counts_as_trained(store, runner):
    disturbed = Meanwhile(store.root)
    prefix = releases.read(store, 2).model.checkpoint.prefix

    def die(key: str) -> None:
        if key == f"{prefix}/model.safetensors":
            raise KeyboardInterrupt

    disturbed.before_delete = die
    with pytest.raises(KeyboardInterrupt):
        pruned(disturbed)
    chain = lineage.completed(store, "main")
    assert len(chain) == 6
    pruned(store)
    assert lineage.completed(store, "main") == chain
    assert store.list(prefix) == [f"{prefix}/PRUNED.json", f"{prefix}/state.json"]


@pytest.mark.parametrize("moved", [{"release": 2}, {"release": 6, "going_to": 2}, {"release": 6, "undecided": (2,)}])
def test_a_rollback_at_the_same_moment_stops_the_prune(store, runner, moved):
    disturbed = Meanwhile(store.root)
    pointer = store.read(releases.CURRENT)

    def roll_back(key: str) -> None:
        if key == "releases/2.pruned.json":
            store.swap(releases.CURRENT, releases.Pointer(**moved).to_json(), expected=pointer)

    disturbed.after_write = roll_back
    with pytest.raises(Conflict, match=r"release 2 .*meanwhile"):
        pruned(disturbed)
    assert releases.pruned(store) == set()
    assert rollback(store, 1).number == 1


@pytest.mark.parametrize("on", [2, 6], ids=["of the plan", "current"])
def test_a_prune_that_stood_still_removes_no_mark_of_another(store, runner, monkeypatch, on):
    """The other one took the locks, and deletes the files of the release."""
    disturbed = Meanwhile(store.root)

    def roll_back(key: str) -> None:
        if key == "releases/2.pruned.json":
            raw, _ = releases.read_pointer(store)
            store.swap(releases.CURRENT, releases.Pointer(release=2).to_json(), expected=raw)

    if on == 2:
        disturbed.after_write = roll_back
    else:
        releases.mark_pruned(store, [on])

    def other(*_: object) -> None:
        releases.mark_pruned(store, [on])

    monkeypatch.setattr("tasks.prune.prune.confirm_lineages", other)
    with contextlib.suppress(Conflict):
        pruned(disturbed, keep=on)  # of 6, nothing is deleted, so nothing else confirms
    assert releases.is_pruned(store, on)


def test_a_release_that_was_made_after_the_plan_was_begun_stops_the_prune(store, runner, monkeypatch):
    planned = plan_prune

    def make(*arguments: Any) -> PrunePlan:
        made = releases.read(store, 6)
        store.create(RELEASE.key(number=7), made.model_copy(update={"number": 7}).to_json())
        return planned(*arguments)

    monkeypatch.setattr("tasks.prune.prune.plan_prune", make)
    with pytest.raises(Conflict, match=r"release 7 .*meanwhile"):
        pruned(store)
    assert not store.exists(CLOSED_NUMBER.key(number=7))
    assert releases.pruned(store) == set()


def test_a_prune_that_is_killed_after_it_closed_the_number_of_a_new_release_does_not_undo_the_release(
    store, runner, monkeypatch
):
    """It stood still while the release was made; a person went back then, so no prune looks at the release first."""

    class Killed(Exception): ...

    def kill(*_: object) -> None:
        raise Killed

    carry_out(plan_run(store, small_config()))
    with monkeypatch.context() as slow:
        slow.setattr("tasks.prune.prune.releases.last", lambda _: 6)  # as it was before that
        slow.setattr("tasks.prune.prune._open", kill)
        with pytest.raises(Killed):
            pruned(store)
    assert store.exists(CLOSED_NUMBER.key(number=7))
    rollback(store, 6)
    pruned(store, keep=1)
    assert 7 not in releases.pruned(store)
    assert rollback(store, 7).number == 7


def test_a_mark_that_a_killed_prune_left_on_the_current_release_is_removed(store, runner):
    releases.mark_pruned(store, [6])
    assert 6 in pruned(store).kept
    assert not releases.is_pruned(store, 6)


def test_a_rollback_that_was_killed_does_not_stop_each_later_prune(store, runner):
    """It announced its target, a prune had marked that, and both were killed. If it only stood still, it is refused."""
    raw, pointer = releases.read_pointer(store)
    assert pointer is not None
    releases.swap_pointer(store, pointer.model_copy(update={"going_to": 2}), expected=raw)
    announced = store.read(releases.CURRENT)
    releases.mark_pruned(store, [2])
    assert 2 in pruned(store).releases
    _, pointer = releases.read_pointer(store)
    assert pointer is not None
    assert pointer.going_to is None
    with pytest.raises(Conflict):
        store.swap(releases.CURRENT, releases.Pointer(release=2).to_json(), expected=announced)
    with pytest.raises(ConfigError, match="release 2 can't serve"):
        rollback(store, 2)


def test_a_prune_at_the_same_moment_stops_the_rollback(store, runner):
    disturbed = Meanwhile(store.root)
    before = releases.current(store)

    def mark(key: str) -> None:
        if key == releases.CURRENT and not releases.pruned(store):
            releases.mark_pruned(store, [2])

    disturbed.after_write = mark
    with pytest.raises(ConfigError, match="release 2 can't serve"):
        rollback(disturbed, 2)
    assert releases.current(store) == before
    _, pointer = releases.read_pointer(store)
    assert pointer is not None
    assert pointer.going_to is None
