"""Rollbacks and holds by a person."""

import getpass
import json
import socket

import pytest

from configs.schema.operations import PruneConfig
from infra.store.base import Conflict
from infra.store.directory import DirectoryStore
from infra.store.records import NewerRecord, read_record
from tasks.contracts.runs import Hold
from tasks.contracts.workspace import CLOSED_NUMBER
from tasks.foundation.errors import ConfigError, StoreError
from tasks.prune.reach import find_reach
from tasks.runs import releases
from tasks.runs.adding_releases import settle
from tasks.runs.holds import hold, lift
from tasks.runs.rollback import rollback
from tasks.runs.snapshot import Snapshot
from tests.support.workspace.adding import Killed, Rival, add, die, serving
from tests.support.workspace.stores import count_requests


def test_a_rollback_restores_model_and_vectors_of_the_previous_release(store):
    first = add(store, "a")
    add(store, "b")
    add(store, "c")
    rollback(store)
    assert rollback(store) == first
    now = releases.current(store)
    assert now is not None
    assert (now.model_prefix, now.vectors_prefix) == ("models/m-a", "vectors/m-a/2021-Q1")
    assert len(releases.history(store)) == 3


def test_a_rollback_to_a_number_works_in_both_directions(store):
    for run in "abc":
        add(store, run)
    assert rollback(store, to=1).number == serving(store) == 1
    assert rollback(store, to=3).number == serving(store) == 3


def test_a_rollback_returns_to_the_release_that_served_before(store):
    for run in "ab":
        add(store, run)
    rollback(store)
    assert add(store, "c").previous == 1
    assert serving(store) == 3
    assert rollback(store).number == 1


@pytest.mark.parametrize(
    ("runs", "to", "message"),
    [
        ("", None, "has no release to roll back to"),
        ("a", None, "no whole release of another model was current before release 1, by model m-a$"),
        ("ab", 2, "release 2 is the current one already"),
        ("ab", 7, "there is no release 7; there are 1, 2"),
    ],
)
def test_an_impossible_rollback_changes_nothing(store, runs, to, message):
    for run in runs:
        add(store, run)
    before = serving(store)
    with pytest.raises(ConfigError, match=message):
        rollback(store, to)
    assert serving(store) == before


@pytest.mark.parametrize("prefix", ["models/m-a/weights", "vectors/m-a/2021-Q1/part-0.parquet"])
@pytest.mark.parametrize("damage", [None, b"other size", b"x"])
def test_a_rollback_to_damaged_files_is_refused_and_names_them(store, prefix, damage):
    add(store, "a")
    add(store, "b")
    store.delete(prefix)
    if damage:
        store.write(prefix, damage)
    with pytest.raises(ConfigError, match=rf"release 1 .*{prefix}"):
        rollback(store)
    assert serving(store) == 2


@pytest.mark.parametrize("prefix", ["models/m-a", "vectors/m-a/2021-Q1"])
def test_a_folder_that_was_changed_together_with_its_manifest_is_not_rolled_back_to(store, prefix):
    add(store, "a")
    add(store, "b")
    changed = json.loads(store.read(f"{prefix}/MANIFEST.json"))
    changed["facts"]["by"] = "somebody"
    store.write(f"{prefix}/MANIFEST.json", json.dumps(changed).encode())
    with pytest.raises(ConfigError, match=rf"{prefix}/MANIFEST\.json"):
        rollback(store)
    assert serving(store) == 2


def test_a_rollback_during_another_write_is_a_conflict(store):
    add(store, "a")
    add(store, "b")
    rival = Rival(store, {0: lambda: add(store, "c")})
    with pytest.raises(Conflict):
        rollback(rival)
    assert serving(store) == 3


@pytest.mark.parametrize("damage", [b"", b"{}", json.dumps({"release": 0, "newest": 0}).encode()])
def test_a_damaged_pointer_names_the_file_and_is_repaired_by_naming_a_release(store, damage):
    add(store, "a")
    add(store, "b")
    store.write(releases.CURRENT, damage)
    with pytest.raises(StoreError, match=r"CURRENT .*rollback --to N"):
        releases.current(store)
    with pytest.raises(StoreError, match="releases/CURRENT"):
        rollback(store)
    assert rollback(store, to=1).number == serving(store) == 1
    add(store, "b")
    assert serving(store) == 1


def test_a_pointer_of_a_newer_version_is_not_repaired(store):
    """A repair would take its hold away, and whatever the unknown key means."""
    add(store, "a")
    add(store, "b")
    newer = json.dumps(json.loads(store.read(releases.CURRENT)) | {"flavour": 1}).encode()
    store.write(releases.CURRENT, newer)
    with pytest.raises(NewerRecord, match="the key flavour"):
        rollback(store, to=1)
    assert store.read(releases.CURRENT) == newer


def test_a_late_release_is_not_decided_by_the_repair_of_a_damaged_pointer(store):
    add(store, "a")
    add(store, "b")
    store.write(CLOSED_NUMBER.key(number=2), b"{}")
    store.write(releases.CURRENT, b"")
    rollback(store, to=1)
    assert releases.is_pruned(store, 2)


def test_a_pointer_that_could_not_be_read_is_not_taken_for_a_damaged_one(store):
    """Its hold would be gone, and the releases that wait for the end of it."""

    class Overloaded(DirectoryStore):
        failed = False

        def read(self, key: str) -> bytes:
            if key == releases.CURRENT and not self.failed:
                self.failed = True
                raise StoreError("503")
            return super().read(key)

    add(store, "a")
    add(store, "b")
    made = hold(store, "why")
    with pytest.raises(StoreError, match="503"):
        rollback(Overloaded(store.root), to=1)
    assert releases.hold_of(store) == made


def test_a_rollback_goes_back_a_model_and_not_an_hour(store):
    """The bad model came at six, was refreshed each hour, and is found in the afternoon."""
    add(store, "good", "2021-Q1")
    add(store, "bad", "2021-Q2")
    for hour in range(2, 6):
        add(store, f"refresh-{hour}", "2021-Q2", refreshed=hour, by="bad")
    assert serving(store) == 6
    assert rollback(store).number == serving(store) == 1


def test_a_rollback_goes_to_the_newest_whole_refresh_of_the_model_before(store):
    add(store, "good", "2021-Q2")
    add(store, "good-1", "2021-Q2", refreshed=1, by="good")
    add(store, "good-2", "2021-Q2", refreshed=2, by="good")
    add(store, "never current", "2021-Q1")
    add(store, "bad", "2021-Q3")
    add(store, "bad-5", "2021-Q3", refreshed=5, by="bad")
    releases.mark_pruned(store, [3])
    assert rollback(store).number == serving(store) == 2


def test_a_rollback_that_finds_no_other_model_says_where_it_can_go(store):
    add(store, "a")
    add(store, "a-1", refreshed=1, by="a")
    with pytest.raises(ConfigError, match=r"before release 2, .* 1$"):
        rollback(store)
    assert serving(store) == 2


def test_a_rollback_that_dies_leaves_the_pointer_at_a_release_that_no_prune_takes(store):
    """It dies after it looked for the marks of a prune, and a prune begins in the next moment."""
    for run in "abc":
        add(store, run)

    with pytest.raises(Killed):
        rollback(Rival(store, {1: die}), 1)
    assert serving(store) == 3
    assert 1 in {release.number for release in find_reach(store, PruneConfig.newest(1)).releases}
    assert rollback(store, 1).number == serving(store) == 1


def test_a_rollback_while_a_number_is_taken_is_not_refused(store):
    """A person goes back in the night; that a run ends at the same moment is no reason to ask again."""
    for run in "ab":
        add(store, run)

    def run_ends() -> None:
        with pytest.raises(Killed):
            add(Rival(store, {2: die}), "c")  # its number is taken, and the pointer not moved yet

    assert rollback(Rival(store, {0: run_ends}), 1).number == serving(store) == 1
    _, pointer = releases.read_pointer(store)
    assert pointer is not None
    assert (pointer.undecided, pointer.going_to) == ((3,), None)


def test_nothing_becomes_current_during_a_hold_and_the_newest_model_does_after_it(store):
    add(store, "good", "2021-Q1")
    hold(store, "the model is bad")
    add(store, "refresh", "2021-Q1", refreshed=1, by="good")
    add(store, "earlier", "2021-Q2")
    add(store, "later", "2021-Q3")
    assert (serving(store), Snapshot(store).held) == (1, {2, 3, 4})
    lifted, waiting = lift(store)
    assert lifted.reason == "the model is bad"
    assert [release.run_key for release in waiting] == ["refresh", "earlier", "later"]
    assert serving(store) == 1, "not before the next run or refresh"
    made = settle(store)
    assert made is not None
    assert (made.run_key, serving(store), settle(store)) == ("later", 4, None)


def test_a_hold_says_who_when_and_why_and_stays_on_record(store):
    add(store, "a")
    made = hold(store, " until Ana has looked ")
    assert made.by == f"{getpass.getuser()}@{socket.gethostname()}"
    assert releases.hold_of(store) == made
    assert made.by in made.sentence
    with pytest.raises(ConfigError, match=r"Ana .*millrace hold --off"):
        hold(store, "another")
    lifted, _ = lift(store)
    (key,) = store.list("releases/holds")
    assert read_record(store, key, Hold, "") == lifted
    assert (lifted.reason, lifted.lifted_by) == ("until Ana has looked", made.by)
    assert releases.hold_of(store) is None


@pytest.mark.parametrize("move", [lambda store: rollback(store, 1), lambda store: add(store, "c")])
def test_a_hold_outlives_a_rollback_and_a_release(store, move):
    add(store, "a")
    add(store, "b")
    made = hold(store, "why")
    move(store)
    assert releases.hold_of(store) == made


def test_a_held_release_can_be_gone_to_and_is_then_decided(store):
    add(store, "a")
    hold(store, "why")
    add(store, "b", "2021-Q2")
    rollback(store, 2)
    assert (serving(store), Snapshot(store).held) == (2, frozenset())


def test_a_hold_at_the_moment_of_a_release_is_not_lost_on_either(store):
    add(store, "a")
    hold(Rival(store, {0: lambda: add(store, "b")}), "why")
    assert (serving(store), releases.hold_of(store) is not None) == (2, True)
    lift(store)
    add(Rival(store, {2: lambda: hold(store, "again")}), "c")
    assert (serving(store), Snapshot(store).held) == (2, {3})


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda store: hold(store, "why"), "has no release yet"),
        (lambda store: lift(store), "has no release yet"),
        (lambda store: (add(store, "a"), hold(store, " ")), "a hold has a reason"),
        (lambda store: (add(store, "a"), lift(store)), "are not held"),
    ],
)
def test_what_can_not_be_held_or_lifted_says_why(store, act, message):
    with pytest.raises(ConfigError, match=message):
        act(store)


class LostReply(DirectoryStore):
    """A store where a write succeeds and its reply is lost; a run announces its number before the client asks again."""

    def __init__(self, other: DirectoryStore, write: int) -> None:
        super().__init__(other.root)
        self._left = write

    def swap(self, key: str, data: bytes, expected: bytes | None) -> None:
        super().swap(key, data, expected)
        self._left -= 1
        if self._left == 0:
            add(DirectoryStore(self.root), "run", "2021-Q1")
            raise Conflict("another process changed it")


@pytest.mark.parametrize("act", ["hold", "lift", "rollback"])
def test_a_person_whose_reply_was_lost_is_not_refused(store, act):
    add(store, "a", "2021-Q2")
    add(store, "b", "2021-Q2")
    if act == "lift":
        hold(store, "why")
        assert lift(LostReply(store, 1))[0].reason == "why"
    elif act == "hold":
        assert hold(LostReply(store, 1), "why") == releases.hold_of(store)
    else:
        assert rollback(LostReply(store, 2), to=1).number == serving(store)


@pytest.mark.parametrize(("whole", "found"), [([], None), ([45], 45), ([2], 2)])
def test_pruned_releases_are_not_read_back_to_the_first_one(store, monkeypatch, whole, found):
    """A publication looks an hour, and a prune a night."""
    for number in range(1, 51):
        add(store, f"run {number}")
    releases.mark_pruned(store, {*range(1, 50)} - {*whole})
    serving = releases.current(store)
    assert serving is not None
    requests = count_requests(monkeypatch)
    before = releases.of_another_model_before(store, serving)
    assert (before and before.number) == found
    assert found == 2 or requests["read releases"] < 20
