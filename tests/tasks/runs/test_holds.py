import getpass
import socket

import pytest

from infra.store.base import Conflict
from infra.store.directory import DirectoryStore
from infra.store.records import read_record
from tasks.contracts.runs import Hold
from tasks.foundation.errors import ConfigError
from tasks.runs import releases
from tasks.runs.adding_releases import settle
from tasks.runs.holds import hold, lift
from tasks.runs.rollback import rollback
from tasks.runs.snapshot import Snapshot
from tests.support.workspace.adding import Rival, add, serving


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
    assert made.sentence.endswith(f"UTC by {made.by}: until Ana has looked.")
    with pytest.raises(ConfigError, match=r"until Ana has looked\. Before another: millrace hold --off"):
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
