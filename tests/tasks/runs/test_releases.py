import pytest

from infra.store.directory import DirectoryStore
from tasks.contracts.workspace import NUMBER
from tasks.foundation.errors import StoreError
from tasks.runs import releases
from tests.support.workspace.adding import add
from tests.support.workspace.releases import write_release


def test_before_the_first_release_nothing_serves(store):
    assert releases.current(store) is None
    assert releases.history(store) == []


def test_the_release_of_a_run_is_found_without_reading_others(store, monkeypatch):
    for run in "abcd":
        add(store, run)
    read, real = [], store.read
    monkeypatch.setattr(store, "read", lambda key: read.append(key) or real(key))
    monkeypatch.setattr(store, "list", lambda prefix: pytest.fail(f"lists {prefix}"))
    found = releases.of_run(store, "c")
    assert found is not None
    assert (found.number, read) == (3, ["runs/c/release/number.json", "releases/3.json"])
    assert releases.of_run(store, "rejected before its release stage") is None


def test_a_number_that_another_run_got_is_not_the_release_of_this_one(store):
    add(store, "a")
    for number in (1, 2):  # stopped before it made its release: the number is taken, or not yet
        store.write(NUMBER.key(run="b"), releases.Numbered(number=number).to_json())
        assert releases.of_run(store, "b") is None


def test_new_models_are_found_without_reading_the_refreshes_between_them(store, monkeypatch):
    for run, refreshed in (("a", None), ("r1", 1), ("b", None), ("r2", 3), ("r3", 4), ("r4", 5), ("c", None)):
        add(store, run, refreshed=refreshed)
    read, real = [], store.read
    monkeypatch.setattr(store, "read", lambda key: read.append(key) or real(key))
    assert [release.number for release in releases.with_new_models(store)] == [7, 3, 1]
    assert read == [releases.CURRENT, *(f"releases/{number}.json" for number in (7, 3, 1))]


@pytest.mark.parametrize("damage", [None, b"{"])
def test_a_damaged_release_names_the_file(store, damage):
    add(store, "a")
    store.delete("releases/1.json")
    if damage:
        store.write("releases/1.json", damage)
    with pytest.raises(StoreError, match=r"releases/1\.json"):
        releases.current(store)


def test_a_changed_letter_of_a_release_is_found_and_a_file_without_a_hash_is_read(store):
    add(store, "a")
    raw, made = store.read("releases/1.json"), releases.read(store, 1)
    assert raw.rindex(b'"sha256": ') > raw.index(b'"libraries": ')  # the last key
    store.write("releases/1.json", raw.replace(b'"run_key": "a"', b'"run_key": "b"'))
    with pytest.raises(StoreError, match=r"releases/1\.json .*bytes"):
        releases.current(store)
    older = raw[: raw.rindex(b",\n")] + b"\n}\n"
    for whole in (raw, older):
        store.write("releases/1.json", whole)
        assert releases.current(store) == made


@pytest.mark.parametrize("known", range(1, 13))
def test_the_newest_number_is_found_from_any_other_without_a_listing(tmp_path, monkeypatch, known) -> None:
    store = DirectoryStore(tmp_path)
    made = [write_release(store, number, items=4) for number in range(1, 13)]
    monkeypatch.setattr(store, "list", None)
    assert releases.newest(store, made[known - 1].number) == 12
