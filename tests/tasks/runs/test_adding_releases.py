import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from infra.store.directory import DirectoryStore
from infra.store.manifest import MissingFolder
from tasks.contracts.workspace import CLOSED_NUMBER
from tasks.foundation.errors import SupersededError
from tasks.runs import adding_releases, releases
from tasks.runs.holds import hold, lift
from tasks.runs.rollback import rollback
from tests.support.workspace.adding import Killed, Rival, add, die, serving, write_outputs
from tests.support.workspace.stores import count_requests


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
    rollback(store, to=2)
    assert serving(store) == 2
    add(store, "later", "2021-Q3")
    assert serving(store) == 2, "asking again does not undo a rollback"
    add(store, "next", "2021-Q4")
    assert serving(store) == 3


def test_numbers_are_ordered_as_numbers(store):
    for run in range(11):
        add(store, f"run{run}")
    assert [release.number for release in releases.history(store)] == list(range(1, 12))


def test_a_run_that_is_added_again_finds_its_release_and_leaves_a_later_one_serving(store):
    first, second = add(store, "a"), add(store, "b")
    assert add(store, "a") == first
    assert add(store, "b") == second
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
    ours = add(Rival(store, {0: lambda: add(store, "b")}), "a")
    assert [release.run_key for release in releases.history(store)] == ["b", "a"]
    assert (ours.number, ours.previous) == (2, 1)
    assert serving(store) == 2


def test_a_rollback_during_a_release_is_followed_by_it(store):
    add(store, "a")
    add(store, "b")
    assert add(Rival(store, {2: lambda: rollback(store)}), "c").number == 3
    assert serving(store) == 3


def test_a_refresh_becomes_current_only_in_place_of_the_release_that_it_refreshed(store):
    add(store, "a")
    assert add(store, "refresh-1", refreshed=1).refreshed == 1
    assert serving(store) == 2
    add(store, "b")
    add(store, "refresh-2", refreshed=2)
    assert serving(store) == 3, "another model was released meanwhile"


@pytest.mark.parametrize(
    "act", [lambda store: add(store, "b"), rollback, lambda store: (hold(store, "why"), lift(store))]
)
def test_no_request_is_made_for_the_hours_before(tmp_path, monkeypatch, act):
    """After a run with a refresh an hour, for two hours or for forty."""
    asked = []
    for hours in (2, 40):
        store = DirectoryStore(tmp_path / str(hours))
        add(store, "old")
        add(store, "a")
        for hour in range(hours):
            add(store, f"refresh-{hour}", refreshed=2 + hour, by="a")
        with monkeypatch.context() as patch:
            seen = count_requests(patch)
            act(store)
        asked.append(seen)
    assert asked[0] == asked[1]


# The conditional writes of a release: its number is written down, the release is made, the pointer is moved.
STEPS = range(4)


@pytest.mark.parametrize("step", STEPS)
def test_a_refresh_at_the_same_moment_never_hides_an_accepted_model(store, step):
    add(store, "old", "2021-Q1")
    disturbed = Rival(store, {step: lambda: add(store, "refresh", "2021-Q1", refreshed=1, by="old")})
    accepted = add(disturbed, "accepted", "2021-Q2")
    assert serving(store) == accepted.number
    assert decided(store)


@pytest.mark.parametrize("step", STEPS)
def test_an_accepted_model_whose_run_was_killed_becomes_current_before_the_next_refresh(store, step):
    add(store, "old", "2021-Q1")
    with contextlib.suppress(Killed):
        add(Rival(store, {step: die}), "accepted", "2021-Q2")
    made = releases.of_run(store, "accepted")
    add(store, "refresh", "2021-Q1", refreshed=1, by="old")
    if made is not None:
        assert serving(store) == made.number, "nobody has run it again yet"
    assert add(store, "accepted", "2021-Q2").number == serving(store), "run again"
    assert decided(store)


@pytest.mark.parametrize("step", STEPS)
def test_a_run_that_was_killed_is_decided_by_the_run_of_another_lineage(store, step):
    """The later span serves at the end, whichever of the two came first."""
    add(store, "old", "2021-Q1")
    with contextlib.suppress(Killed):
        add(Rival(store, {step: die}), "earlier", "2021-Q2")
    assert add(store, "later", "2021-Q3").number == serving(store)
    add(store, "earlier", "2021-Q2")
    current = releases.current(store)
    assert current is not None
    assert (current.run_key, decided(store)) == ("later", True)


@pytest.mark.parametrize("step", STEPS)
def test_the_first_release_of_a_workspace_may_be_killed_anywhere(store, step):
    with contextlib.suppress(Killed):
        add(Rival(store, {step: die}), "a", "2021-Q1")
    add(store, "b", "2021-Q2")
    add(store, "a", "2021-Q1")
    current = releases.current(store)
    assert current is not None
    assert (current.run_key, decided(store)) == ("b", True)
    assert sorted(release.run_key for release in releases.history(store)) == ["a", "b"]


def test_many_at_the_same_moment_lose_no_accepted_model(store):
    """Threads, without a kill: a run, a refresh of the release before, and a run of an older span."""
    add(store, "start", "2020-Q1")
    for year in range(2021, 2036):
        current = releases.current(store)
        assert current is not None
        write_outputs(store, f"{year}")
        write_outputs(store, f"{year}-old")
        with ThreadPoolExecutor() as together:
            results = [
                together.submit(add, store, f"{year}", f"{year}-Q2"),
                together.submit(add, store, f"{year}-refresh", current.span.name, current.number, current.run_key),
                together.submit(add, store, f"{year}-old", f"{year}-Q1"),
            ]
        assert serving(store) == results[0].result().number
        assert decided(store)
        assert len({result.result().number for result in results}) == 3


class Late(DirectoryStore):
    """A store whose process stands still at its first look at the pointer, while another one acts."""

    def __init__(self, other: DirectoryStore, act: Callable[[], object]) -> None:
        super().__init__(other.root)
        self._acts = [act]

    def read(self, key: str) -> bytes:
        if key == releases.CURRENT and self._acts:
            self._acts.pop()()
        return super().read(key)


@pytest.mark.parametrize("dies", [False, True])
def test_a_run_whose_successor_was_faster_has_one_release(store, dies):
    add(store, "old", "2021-Q1")

    class LateAndDead(Late):
        def create(self, key: str, data: bytes) -> None:
            if key.startswith("releases/"):
                die()
            super().create(key, data)

    late = LateAndDead if dies else Late
    made = add(late(store, lambda: add(store, "a", "2021-Q2")), "a", "2021-Q2")
    assert [release.run_key for release in releases.history(store)] == ["old", "a"]
    assert releases.of_run(store, "a") == made == releases.current(store)


def test_a_refresh_that_lost_its_base_serves_once_the_base_does_again(store):
    """Nobody left it: it never served. After a rollback from it, only a person brings it back."""
    add(store, "a")
    add(store, "b")
    disturbed = Rival(store, {0: lambda: rollback(store, to=1)})
    passed = add(disturbed, "refresh", refreshed=2, by="b")
    assert (serving(store), decided(store), releases.was_left(store, passed.number)) == (1, True, False)
    rollback(store, to=2)
    assert add(store, "refresh", refreshed=2, by="b") == passed
    assert serving(store) == passed.number
    rollback(store, to=2)
    assert releases.was_left(store, passed.number)
    add(store, "refresh", refreshed=2, by="b")
    assert serving(store) == 2, "a person left it"


def test_an_undecided_refresh_takes_the_place_of_the_release_that_it_is_asked_for_again(store):
    """It died before the decision, and a person went back to an earlier refresh by the same model."""
    add(store, "a")
    add(store, "hour", refreshed=1, by="a")
    with pytest.raises(Killed):
        add(Rival(store, {2: die}), "refresh", refreshed=2, by="a")
    rollback(store, to=1)
    made = add(store, "refresh", refreshed=1, by="a")
    assert (made.number, serving(store), decided(store)) == (3, 3, True)


def test_a_pointer_that_moved_and_came_back_is_not_taken_for_an_unmoved_one(store):
    """A refresh would announce the number of the run that a person left, as undecided."""
    add(store, "a")

    def released_and_left() -> None:
        add(store, "b", "2021-Q2")
        rollback(store, to=1)

    made = add(Rival(store, {0: released_and_left}), "refresh", refreshed=1, by="a")
    assert (made.number, serving(store)) == (3, 3)


def decided(store: DirectoryStore) -> bool:
    """Whether no release that is there waits for a decision."""
    _, pointer = releases.read_pointer(store)
    return pointer is not None and not set(pointer.undecided) & set(releases.numbers(store))


class Overtaken(DirectoryStore):
    """A store where another process of the run makes its release just after this one has looked for it again."""

    def __init__(self, other: DirectoryStore, key: str, act: Callable[[], object]) -> None:
        super().__init__(other.root)
        self._key, self._act, self._looks = key, act, 0

    def read(self, key: str) -> bytes:
        try:
            return super().read(key)
        except FileNotFoundError:
            self._looks += key == self._key
            if self._looks == 2:
                self._act()
            raise


def test_a_run_has_one_release_even_if_a_process_of_it_wakes_while_another_one_looks_for_it(store):
    add(store, "old")
    with contextlib.suppress(Killed):
        add(Rival(store, {1: die}), "a")  # its number is written down, and its release is not made
    add(Overtaken(store, "releases/2.json", lambda: add(store, "a")), "a")
    assert [release.run_key for release in releases.history(store)] == ["old", "a"]


def test_a_process_that_stood_still_during_a_prune_makes_no_release_that_serves(store):
    """It lost its lineage after the last check, and its files are gone when it goes on."""
    add(store, "old")

    def prune() -> None:
        store.create(CLOSED_NUMBER.key(number=2), b"{}")
        store.delete("vectors/m-a")

    with pytest.raises(SupersededError, match="prune deleted files"):
        add(Rival(store, {1: prune}), "a")
    add(store, "b")
    assert (serving(store), releases.pruned(store)) == (3, {2})
    write_outputs(store, "a")
    assert add(store, "a").number == 2, "the same command made its files again"
    assert releases.pruned(store) == set()


def test_a_refresh_that_a_prune_takes_while_it_is_decided_again_does_not_serve(store, monkeypatch):
    add(store, "old")
    add(store, "a")
    add(store, "r", refreshed=2, by="a")
    rollback(store, to=2)
    add(store, "f", refreshed=3, by="a")
    swap = adding_releases.swap_pointer

    def swap_and_prune(*arguments: Any, **more: Any) -> bytes:
        monkeypatch.setattr(adding_releases, "swap_pointer", swap)
        data = swap(*arguments, **more)
        releases.mark_pruned(store, [4])
        return data

    monkeypatch.setattr(adding_releases, "swap_pointer", swap_and_prune)
    with pytest.raises(SupersededError, match="release 4 of run f"):
        add(store, "f", refreshed=2, by="a")
    _, pointer = releases.read_pointer(store)
    assert pointer is not None
    assert (pointer.release, pointer.undecided, pointer.passed_over) == (2, (), (4,))


def test_a_refresh_that_was_passed_over_is_decided_for_the_release_that_serves_when_it_is_asked_for_again(store):
    """A person went back to an earlier refresh by the same model meanwhile. Else no refresh would add these items."""
    add(store, "old")
    add(store, "a")
    add(store, "r", refreshed=2, by="a")
    rollback(store, to=2)
    assert add(store, "f", refreshed=3, by="a").number == 4
    assert serving(store) == 2, "a refresh under way undoes no rollback"
    add(store, "f", refreshed=2, by="a")
    assert serving(store) == 4
    rollback(store, to=2)
    add(store, "f", refreshed=2, by="a")
    assert serving(store) == 2, "a person left it"
