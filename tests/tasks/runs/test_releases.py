import json

import pytest

from tasks.foundation.errors import StoreError
from tasks.runs import releases
from tests.support.workspace.adding import add


def test_before_the_first_release_nothing_serves(store):
    assert releases.current(store) is None
    assert releases.history(store) == []


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


@pytest.mark.parametrize("damage", [None, b"{"])
def test_a_damaged_release_names_the_file(store, damage):
    add(store, "a")
    store.delete("releases/1.json")
    if damage:
        store.write("releases/1.json", damage)
    with pytest.raises(StoreError, match=r"releases/1\.json"):
        releases.current(store)
