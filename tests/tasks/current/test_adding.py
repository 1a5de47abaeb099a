import pytest

from infra.store.manifest import MissingFolder
from tasks.current.rollback import rollback
from tasks.runs import releases
from tests.support.workspace.adding import Rival, add, serving, write_outputs


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
    rival.before_swap = lambda: rollback(store)
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
