import json
from collections.abc import Callable

import pytest

from infra.store.base import Conflict
from infra.store.directory import DirectoryStore
from infra.store.manifest import MissingFolder
from tasks.contracts.outcomes import InferOutcome, ReleaseOutcome
from tasks.contracts.references import CheckpointRef, ModelRef, SpanRef
from tasks.contracts.runs import Release
from tasks.foundation.errors import ConfigError, StoreError
from tasks.runs import releases
from tests.support.fakes.fake_runner import commit_files


def write_outputs(store: DirectoryStore, run_key: str) -> None:
    commit_files(store, f"models/m-{run_key}", {"weights": run_key}, "model")
    commit_files(store, f"vectors/m-{run_key}/2021-Q1", {"part-0.parquet": run_key}, "vectors")


def add(store: DirectoryStore, run_key: str, span: str = "2021-Q1", refreshed: int | None = None) -> Release:
    """A release of run `run_key` with its own small model and vectors."""
    model = ModelRef(version=f"m-{run_key}", checkpoint=CheckpointRef(prefix="lineages/main/x", step=1, sha256=run_key))
    if not store.list(f"models/m-{run_key}"):
        write_outputs(store, run_key)
    return releases.add(
        store,
        span=SpanRef(name=span, version=1),
        run_key=run_key,
        model=model,
        exported=ReleaseOutcome(model=f"models/m-{run_key}", min_cosine=1.0, probed=8),
        inferred=InferOutcome(
            prefix=f"vectors/m-{run_key}/2021-Q1", vectors=7, width=4, shards=1, shards_reused=0, texts_per_second=1.0
        ),
        metrics={"recall@10": 0.5},
        refreshed=refreshed,
    )


def serving(store: DirectoryStore) -> int | None:
    release = releases.current(store)
    return release.number if release else None


class Rival(DirectoryStore):
    """A store in which another writer acts just before the next conditional write."""

    def __init__(self, other: DirectoryStore) -> None:
        super().__init__(other.root)
        self.before_create: Callable[[], object] = lambda: None
        self.before_swap: Callable[[], object] = lambda: None

    def create(self, key: str, data: bytes) -> None:
        act, self.before_create = self.before_create, lambda: None
        act()
        super().create(key, data)

    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        act, self.before_swap = self.before_swap, lambda: None
        act()
        super().swap(key, data, expected)


def test_before_the_first_release_nothing_serves(store):
    assert releases.current(store) is None
    assert releases.history(store) == []


def test_releases_are_numbered_and_name_the_previous_one(store):
    first, second = add(store, "a"), add(store, "b")
    assert (first.number, first.previous) == (1, None)
    assert (second.number, second.previous) == (2, 1)
    assert releases.current(store) == second
    assert releases.history(store) == [first, second]
    assert second.model_prefix == "models/m-b"
    assert second.vectors_prefix == "vectors/m-b/2021-Q1"


def test_an_old_run_that_ends_late_does_not_replace_the_current_release(store):
    later, earlier = add(store, "later", "2021-Q3"), add(store, "earlier", "2021-Q2")
    assert (earlier.number, serving(store)) == (2, later.number)
    releases.rollback(store, to=2)
    assert serving(store) == 2
    add(store, "later", "2021-Q3")
    assert serving(store) == 2, "asking again does not undo a rollback"
    add(store, "next", "2021-Q4")
    assert serving(store) == 3


def test_numbers_are_ordered_as_numbers(store):
    for run in range(11):
        add(store, f"run{run}")
    assert [release.number for release in releases.history(store)] == list(range(1, 12))


def test_the_release_of_a_run_is_found_without_reading_all_others(store, monkeypatch):
    for run in "abcd":
        add(store, run)
        store.write(f"runs/{run}/release/result.json", b"{}")
    read, real = [], store.read
    monkeypatch.setattr(store, "read", lambda key: read.append(key) or real(key))
    found = releases.of_run(store, "c")
    assert found is not None
    assert (found.number, read) == (3, ["releases/4.json", "releases/3.json"])
    assert releases.of_run(store, "rejected before its release stage") is None
    assert len(read) == 2


@pytest.mark.parametrize("recorded", [0, 2, 4, 7])
def test_new_models_are_found_without_reading_the_refreshes_between_them(store, monkeypatch, recorded):
    for run, refreshed in (("a", None), ("r1", 1), ("b", None), ("r2", 3), ("r3", 4), ("r4", 5), ("c", None)):
        number = add(store, run, refreshed=refreshed).number
        if number > recorded:
            continue
        made = json.loads(store.read(f"releases/{number}.json"))
        del made["model_before"]  # an earlier version made it
        store.write(f"releases/{number}.json", json.dumps(made).encode())
    read, real = [], store.read
    monkeypatch.setattr(store, "read", lambda key: read.append(int(key[9:-5])) or real(key))
    assert [release.number for release in releases.with_new_models(store)] == [7, 3, 1]
    assert read == {0: [7, 3, 1], 2: [7, 3, 2, 1], 4: [7, 6, 5, 4, 3, 2, 1], 7: [7, 6, 5, 4, 3, 2, 1]}[recorded]


def test_a_run_that_is_added_again_finds_its_release_and_leaves_a_later_one_serving(store):
    first, second = add(store, "a"), add(store, "b")
    assert add(store, "a") == first
    assert add(store, "b") == second
    assert serving(store) == 2


def test_a_release_without_its_pointer_is_finished_by_adding_it_again(store):
    add(store, "a")
    before = store.read(releases.CURRENT)
    add(store, "b")
    store.write(releases.CURRENT, before)  # as after a crash between the two writes
    assert serving(store) == 1
    add(store, "b")
    assert serving(store) == 2


@pytest.mark.parametrize("gone", ["models/m-b", "vectors/m-b/2021-Q1"])
def test_an_incomplete_model_or_vectors_are_never_released(store, gone):
    add(store, "a")
    write_outputs(store, "b")
    store.delete(f"{gone}/MANIFEST.json")
    with pytest.raises(MissingFolder, match=gone):
        add(store, "b")
    assert serving(store) == 1
    assert len(releases.history(store)) == 1


def test_a_number_taken_by_another_run_is_skipped(store):
    rival = Rival(store)
    rival.before_create = lambda: add(store, "b")
    ours = add(rival, "a")
    assert [release.run_key for release in releases.history(store)] == ["b", "a"]
    assert (ours.number, ours.previous) == (2, 1)
    assert serving(store) == 2


def test_a_lost_swap_is_repeated_on_the_new_pointer(store):
    add(store, "a")
    add(store, "b")
    rival = Rival(store)
    rival.before_swap = lambda: releases.rollback(store)
    assert add(rival, "c").number == 3
    assert serving(store) == 3


def test_a_lost_swap_leaves_a_later_release_current(store):
    add(store, "a")
    rival = Rival(store)
    rival.before_swap = lambda: add(store, "later")
    assert add(rival, "ours").number == 2
    assert serving(store) == 3


def test_a_refresh_becomes_current_only_in_place_of_the_release_that_it_refreshed(store):
    add(store, "a")
    assert add(store, "refresh-1", refreshed=1).refreshed == 1
    assert serving(store) == 2
    add(store, "b")
    add(store, "refresh-2", refreshed=2)
    assert serving(store) == 3, "another model was released meanwhile"


def test_a_rollback_restores_model_and_vectors_of_the_previous_release(store):
    first = add(store, "a")
    add(store, "b")
    add(store, "c")
    releases.rollback(store)
    assert releases.rollback(store) == first
    now = releases.current(store)
    assert now is not None
    assert (now.model_prefix, now.vectors_prefix) == ("models/m-a", "vectors/m-a/2021-Q1")
    assert len(releases.history(store)) == 3


def test_a_rollback_to_a_number_works_in_both_directions(store):
    for run in "abc":
        add(store, run)
    assert releases.rollback(store, to=1).number == serving(store) == 1
    assert releases.rollback(store, to=3).number == serving(store) == 3


def test_a_rollback_returns_to_the_release_that_served_before(store):
    for run in "ab":
        add(store, run)
    releases.rollback(store)
    assert add(store, "c").previous == 1
    assert serving(store) == 3
    assert releases.rollback(store).number == 1


@pytest.mark.parametrize(
    ("runs", "to", "message"),
    [
        ("", None, "has no release to roll back to"),
        ("a", None, "release 1 is the first"),
        ("ab", 2, "release 2 is the current one already"),
        ("ab", 7, "there is no release 7; there are 1, 2"),
    ],
)
def test_an_impossible_rollback_changes_nothing(store, runs, to, message):
    for run in runs:
        add(store, run)
    before = serving(store)
    with pytest.raises(ConfigError, match=message):
        releases.rollback(store, to)
    assert serving(store) == before


@pytest.mark.parametrize("prefix", ["models/m-a/weights", "vectors/m-a/2021-Q1/part-0.parquet"])
@pytest.mark.parametrize(("damage", "verify"), [(None, False), (b"other size", False), (b"x", True)])
def test_a_rollback_to_damaged_files_is_refused_and_names_them(store, prefix, damage, verify):
    add(store, "a")
    add(store, "b")
    store.delete(prefix)
    if damage:
        store.write(prefix, damage)
    with pytest.raises(ConfigError, match=rf"release 1 can't serve, nothing was changed: .*{prefix}"):
        releases.rollback(store, verify=verify)
    assert serving(store) == 2


def test_a_rollback_during_another_write_is_a_conflict(store):
    add(store, "a")
    add(store, "b")
    rival = Rival(store)
    rival.before_swap = lambda: add(store, "c")
    with pytest.raises(Conflict):
        releases.rollback(rival)
    assert serving(store) == 3


@pytest.mark.parametrize("damage", [b"", b"{}", json.dumps({"release": 0, "newest": 0}).encode()])
def test_a_damaged_pointer_names_the_file_and_is_repaired_by_naming_a_release(store, damage):
    add(store, "a")
    add(store, "b")
    store.write(releases.CURRENT, damage)
    with pytest.raises(StoreError, match=r"releases/CURRENT is not a valid pointer.*millrace rollback --to N"):
        releases.current(store)
    with pytest.raises(StoreError, match="releases/CURRENT"):
        releases.rollback(store)
    assert releases.rollback(store, to=1).number == serving(store) == 1
    add(store, "b")
    assert serving(store) == 1


@pytest.mark.parametrize("damage", [None, b"{"])
def test_a_damaged_release_names_the_file(store, damage):
    add(store, "a")
    store.delete("releases/1.json")
    if damage:
        store.write("releases/1.json", damage)
    with pytest.raises(StoreError, match=r"releases/1\.json"):
        releases.current(store)
