"""Catalogues of many steps: each writes its changes, and holds what one that is made at once holds."""

import random
from pathlib import Path
from typing import Any

import pytest

from infra.store.manifest import find_entry, read_manifest
from tasks.contracts.references import CatalogueRef, FeedRef, RowsRef
from tasks.data.layers import MOST_DELTAS, layers_of
from tasks.data.rows import partition_of
from tasks.worker.catalogue import build as building
from tasks.worker.catalogue.records import choose, connect, records_of
from tasks.worker.catalogue.sources import whole
from tests.support.workspace.catalogues import World

SHOP = [
    {"id": f"i{number}", "text": f"text {number} of the shop", "day": 2, "price": number / 8, "colour": "red"}
    for number in range(3000)
]
SETTINGS = ("infer.shard_rows=2048",)
FEATURES = {"price": "DOUBLE", "colour": "VARCHAR"}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def at_once(world: World, sources: list[RowsRef | FeedRef], monkeypatch: pytest.MonkeyPatch) -> CatalogueRef:
    with monkeypatch.context() as patch:
        patch.setattr(building, "_FORMAT", 0)  # else the one that was made in steps is found
        return world.build(*sources, settings=SETTINGS)


def records(world: World, ref: CatalogueRef) -> list[tuple[Any, ...]]:
    """All records of a catalogue as sources of the next one, deleted items too."""
    with connect(world.folder) as database:
        queries = (f"({records_of(source, FEATURES, 1)})" for source in whole(world.store, ref))
        return sorted(database.sql(" UNION ALL ".join(queries)).fetchall(), key=lambda row: row[0])


def agree(world: World, made: CatalogueRef, expected: CatalogueRef) -> None:
    deleted = (read_manifest(world.store, ref.prefix).facts["deleted"] for ref in (made, expected))
    assert next(deleted) == next(deleted)
    assert world.items(made) == world.items(expected)
    assert records(world, made) == records(world, expected)
    for named, others in ((["i3", "e4", "none"], 40), ([], 10**6)):
        chosen = (choose(world.store, ref, named, others, list(FEATURES)) for ref in (made, expected))
        assert next(chosen).equals(next(chosen))


def written(world: World, ref: CatalogueRef) -> int:
    return sum(entry.bytes for entry in read_manifest(world.store, ref.prefix).files if entry.at is None)


class History:
    """A shop with a feed of changes, and a second one that is exported anew, so that records vanish."""

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._draw = world, random.Random(seed)
        self.sources: list[RowsRef | FeedRef] = [world.rows(*SHOP)]
        self._export = {
            f"e{number}": {"id": f"e{number}", "text": f"export {number}", "day": 3} for number in range(60)
        }
        self._exported: FeedRef | None = None

    def step(self) -> None:
        draw = self._draw
        kind = draw.choice(["rows", "feed", "export", "export"])
        if kind == "export":
            for item in draw.sample(sorted(self._export), 2):
                how = draw.choice(["gone", "later", "earlier", "deleted", "of the shop"])
                if how == "gone":
                    self._export.pop(item, None)
                else:
                    name = f"i{draw.randrange(40)}" if how == "of the shop" else item
                    self._export[name] = {"id": name, "text": f"{how} {draw.random()}", "day": 1 + draw.randrange(20),
                                          "deleted": how == "deleted"}  # fmt: skip
            if self._exported is not None:
                self.sources.remove(self._exported)
            self._exported = self._world.feed(*self._export.values(), name="export")
            self.sources.append(self._exported)
            return
        rows = [{"id": f"i{draw.randrange(3020)}", "text": f"new {draw.random()}", "day": 1 + draw.randrange(20)}
                for _ in range(draw.choice([1, 3, 250]))]  # fmt: skip
        if kind == "rows":
            self.sources.append(self._world.rows(*(row | {"price": 1.5, "colour": "blue"} for row in rows)))
        else:
            deleted = [row | {"deleted": draw.random() < 0.5} for row in rows]
            self.sources.append(self._world.feed(*deleted, name=f"feed-{len(self.sources)}"))


@pytest.mark.parametrize("seed", range(2))
def test_each_step_holds_what_a_catalogue_made_at_once_holds(world: World, seed: int, monkeypatch: pytest.MonkeyPatch):
    history = History(world, seed)
    made = world.build(*history.sources, settings=SETTINGS)
    deepest = 0
    for step in range(24):
        history.step()
        made = world.build(*history.sources, bases=(made,), settings=SETTINGS)
        found = read_manifest(world.store, made.prefix)
        deepest = max(deepest, *(len(layers) for layers in layers_of(found).values()))
        if step % 6 == 5:
            agree(world, made, at_once(world, history.sources, monkeypatch))
    assert 2 < deepest <= 1 + MOST_DELTAS, "some steps lay a delta over another one"
    assert world.build(*history.sources, bases=(made,), settings=SETTINGS) == made
    history.sources.append(world.rows(*({"id": f"n{number}", "text": "new", "day": 1} for number in range(3000))))
    split = world.build(*history.sources, bases=(made,), settings=SETTINGS)
    assert split.partitions > made.partitions
    agree(world, split, at_once(world, history.sources, monkeypatch))


def test_a_step_writes_its_changes_alone(world: World):
    one = world.rows(*SHOP)
    first = world.build(one, settings=SETTINGS)
    sources: list[RowsRef | FeedRef] = [one]
    for step in range(6):
        sources.append(world.feed({"id": f"i{step}", "text": "changed", "day": 9}, name=f"feed-{step}"))
        second = world.build(*sources, bases=(first,), settings=SETTINGS)
        assert written(world, second) < 0.1 * written(world, world.build(one, settings=SETTINGS))
        assert read_manifest(world.store, second.prefix).version == 2, "older readers take each file for itself"
        first = second


def test_an_equal_record_writes_nothing(world: World):
    one = world.rows(*SHOP)
    first = world.build(one, settings=SETTINGS)
    second = world.build(one, world.rows(SHOP[7], SHOP[8] | {"day": 1}), bases=(first,), settings=SETTINGS)
    assert [entry.at for entry in read_manifest(world.store, second.prefix).files if entry.at is None] == []


def test_two_runs_may_build_a_catalogue_on_two_others_at_once(world: World, monkeypatch: pytest.MonkeyPatch):
    """Both deltas over a partition are the first one; neither run may replace the other's file."""
    other_one = next(f"i{n}" for n in range(5, 3000) if partition_of(f"i{n}", 2) == partition_of("i1", 2))
    one, two = world.rows(*SHOP), world.feed({"id": other_one, "text": "two", "day": 9}, name="two")
    three = world.feed({"id": "i1", "text": "three", "day": 10}, {"id": "i4", "text": "x", "day": 9}, name="three")
    first = world.build(one, settings=SETTINGS)
    second = world.build(one, two, settings=SETTINGS)  # at once, so that the next delta is its first one, too
    placed, other = building.place, list[CatalogueRef]()

    def late(*args: Any) -> None:
        if not other:
            other.append(first)
            other[0] = world.build(one, two, three, bases=(first,), settings=SETTINGS)
        placed(*args)

    monkeypatch.setattr(building, "place", late)
    mine = world.build(one, two, three, bases=(second,), settings=SETTINGS)
    assert mine == other[0]
    items = world.items(mine)
    assert (len(items), items["i1"]["text"], items[other_one]["text"], items["i4"]["text"]) == (
        3000,
        "three",
        "two",
        "x",
    )


def test_a_damaged_delta_is_left_out_and_the_catalogue_is_built_of_its_sources(world: World):
    one, two = world.rows(*SHOP), world.feed({"id": "i1", "text": "two", "day": 9}, name="two")
    first = world.build(one, settings=SETTINGS)
    second = world.build(one, two, bases=(first,), settings=SETTINGS)
    manifest = read_manifest(world.store, second.prefix)
    (delta,) = (layers[1].name for layers in layers_of(manifest).values() if len(layers) > 1)
    path = world.store.path(find_entry(world.store, second.prefix, manifest, delta).key(second.prefix))
    path.write_bytes(path.read_bytes()[:-9] + b"otherwise")
    three = world.feed({"id": "i2", "text": "three", "day": 9}, name="three")
    items = world.items(world.build(one, two, three, bases=(second,), settings=SETTINGS))
    assert (len(items), items["i1"]["text"], items["i2"]["text"]) == (3000, "two", "three")
