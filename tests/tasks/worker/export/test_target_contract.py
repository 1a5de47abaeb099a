"""What every kind of target must do; each test runs on all of them, and on those with a form in its index."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from configs.schema.stages import KINDS
from infra.store.directory import DirectoryStore
from infra.store.manifest import read_manifest
from tasks.contracts.outcomes import PublishOutcome
from tasks.contracts.runs import Release
from tasks.data.ids import MOST_ID_BYTES, unpublishable
from tasks.foundation.errors import ConfigError, DataError, StoreError
from tasks.runs import branches
from tasks.worker import publish
from tasks.worker.export import targets
from tasks.worker.export.table_contents import ReleaseVectors
from tasks.worker.export.target import Target, table_names
from tasks.worker.export.targets import open_target
from tests.support.workspace.publications import publish_job
from tests.support.workspace.releases import PARTITIONS, make_current, write_release
from tests.tasks.erase.scan import found
from tests.tasks.worker.export.places import Hit, Place, empty_place, lancedb_place
from tests.tasks.worker.export.reading import served, vector_of
from tests.tasks.worker.export.watched import Watched


def bring(store: DirectoryStore, place: Place, release: Release, *overrides: str, **inputs: bool) -> PublishOutcome:
    return publish.run(publish_job(store, place.config(*overrides), release, **inputs))


@pytest.fixture(params=[*sorted(KINDS), "lancedb binary", "pgvector binary", "opensearch int8"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """An empty place. A form is the service's alone: publish does not know it, and so asks for no model's queries."""
    kind, _, form = request.param.partition(" ")
    opened = targets.TARGETS[kind]
    if form:
        monkeypatch.setitem(targets.TARGETS, kind, lambda each: opened(each.model_copy(update={"form": form})))
    return empty_place(kind, request, tmp_path / "target")


@pytest.fixture
def target_now(place: Place) -> Callable[[Callable[[Target], Any]], Any]:
    """Lets a function look at the target, or change it, between two publications."""

    def use(function: Callable[[Target], Any]) -> Any:
        with contextlib.closing(open_target(place.config().publish.targets[0])) as target:
            return function(target)

    return use


def test_consumers_get_every_item_with_its_text_and_the_models_version(store, place):
    release = write_release(store, 3)
    outcome = bring(store, place, release)
    assert (outcome.served_before, outcome.vectors, outcome.loaded, outcome.dropped) == (None, 24, 24, ())
    assert outcome.table is not None
    assert outcome.table.startswith("look_r3_")
    assert outcome.recall == 1.0
    (nearest,) = place.search(vector_of(store, release, "i0007"), 1) or [None]
    assert nearest == Hit("i0007", 'item i0007 of main-00000003, it\'s "new"\n', "main-00000003")
    assert served(store, place, release)


ODD_TEXTS = (
    "\\N",
    "a\tb\\c\r\nd",
    "'; DROP TABLE look; --",
    "{}",
    "☕ \u202eabc\u202c \U0001f468\u200d\U0001f469",
    "x" * 200_000,
)
ODD = {
    **{f"odd {number}": text for number, text in enumerate(ODD_TEXTS)},
    **dict.fromkeys(("a/b%20c", "\\.", 'it\'s "1"', "ß́ ", "\x7f\x01", "é" * (MOST_ID_BYTES // 2)), "a plain text"),
}


def test_whatever_text_and_id_validate_lets_in_reaches_consumers_as_it_is(store, place):
    assert not any(unpublishable(item_id, text) for item_id, text in ODD.items())
    release = write_release(store, 1, texts=ODD)
    assert bring(store, place, release).recall == 1.0
    found = place.search(vector_of(store, release, "odd 0"), len(ODD) + 1)
    assert {hit.item_id: hit.text for hit in found or []} == ODD


def test_vectors_of_half_the_bytes_are_served_too(store, place):
    release = write_release(store, 1, fp16=True)
    bring(store, place, release)
    assert served(store, place, release)


def test_the_next_release_takes_over_and_only_the_one_before_it_is_kept(store, place, target_now):
    tables = []
    for number in (1, 2, 3):
        release = write_release(store, number, fp16=number == 3)  # another type: the same name all the same
        outcome = bring(store, place, release)
        assert served(store, place, release)
        assert outcome.served_before == (tables[-1] if tables else None)
        tables.append(outcome.table)
    assert outcome.dropped == (tables[0],)
    assert target_now(lambda target: target.tables()) == tables[1:]
    back = write_release(store, 2)
    outcome = bring(store, place, back)  # a rollback: its table is still whole
    assert (outcome.loaded, outcome.table, outcome.dropped) == (0, tables[1], ())
    assert served(store, place, back)
    assert target_now(lambda target: target.tables()) == tables[1:]


def test_a_target_that_serves_the_release_is_only_checked(store, place, monkeypatch):
    release = write_release(store, 1)
    first = bring(store, place, release)
    watched = Watched.instead_of_targets(monkeypatch)
    again = bring(store, place, release)
    assert (again.loaded, again.table, again.served_before) == (0, first.table, first.table)
    assert not {"create", "load", "serve", "drop"} & set(watched.calls)
    assert "item_ids" not in watched.calls, "a read of all rows"
    assert "rows_of" in watched.calls


def test_a_release_that_is_not_current_any_more_is_left_out_unless_it_is_asked_for(store, place):
    old, new = write_release(store, 1), write_release(store, 2)
    assert bring(store, place, old).table is None
    assert place.search(vector_of(store, old, "i0007"), 1) is None
    bring(store, place, new)
    assert bring(store, place, old, only_current=False).table is not None
    assert served(store, place, old)


def test_a_rollback_during_the_publication_is_not_undone(store, place, monkeypatch):
    old, new = write_release(store, 1), write_release(store, 2)
    make_current(store, old)
    bring(store, place, old)
    make_current(store, new)
    watched = Watched.instead_of_targets(monkeypatch)
    watched.before["index"] = lambda: make_current(store, old)
    assert bring(store, place, new).table is None
    assert served(store, place, old)


def test_a_rollback_swaps_to_the_table_that_is_there_and_reads_nothing_back(store, place, target_now, monkeypatch):
    old, new = write_release(store, 1), write_release(store, 2)
    for release in (old, new):
        bring(store, place, release, only_current=False)
    make_current(store, old)
    watched = Watched.instead_of_targets(monkeypatch)
    swapped = bring(store, place, old, swap_alone=True)
    assert set(watched.calls) <= {"serving", "owner", "tables", "serve", "close"}
    assert served(store, place, old)
    assert (swapped.recall, swapped.loaded) == (None, 0)
    again = bring(store, place, old)  # what a rollback does then
    assert (again.table, again.served_before, again.loaded, again.recall) == (swapped.table, swapped.table, 0, 1.0)
    make_current(store, new)
    assert bring(store, place, old, swap_alone=True).table is None, "another rollback, meanwhile"
    assert served(store, place, old)


def test_a_table_that_is_gone_is_not_swapped_to(store, place, target_now):
    old, new = write_release(store, 1), write_release(store, 2)
    bring(store, place, new)
    make_current(store, old)
    assert bring(store, place, old, swap_alone=True).table is None
    assert served(store, place, new)


def test_the_table_of_the_model_before_stays_through_all_refreshes_of_a_bad_model(store, place, target_now):
    """Else a rollback in the afternoon would load the good model's vectors again."""
    write_release(store, 1)
    good, bad = write_release(store, 2), write_release(store, 3)
    bring(store, place, good, only_current=False)
    bring(store, place, bad)
    for number in (4, 5, 6):
        refresh = write_release(store, number)
        record = refresh.model_copy(update={"refreshed": number - 1, "model": bad.model, "model_before": 3})
        store.write(f"releases/{number}.json", record.to_json())
        bring(store, place, refresh)
    assert [name.split("_")[1] for name in target_now(lambda target: target.tables())] == ["r2", "r5", "r6"]


def test_an_index_that_finds_too_little_is_not_served(store, place, monkeypatch):
    old = write_release(store, 1)
    bring(store, place, old)
    new = write_release(store, 2)
    watched = Watched.instead_of_targets(monkeypatch)
    watched.answers = lambda hits: [*hits[:9], hits[0]]  # nine of ten, and one of them twice
    with pytest.raises(DataError, match=r"0\.9000 .*min_recall 0\.95"):
        bring(store, place, new)
    assert served(store, place, old)
    assert bring(store, place, new, "publish.min_recall=0.9").recall == 0.9
    assert served(store, place, new)


@pytest.mark.parametrize("wrong", ["an item of another release", "a row by another model"])
def test_other_content_is_found_and_loaded_again(store, place, target_now, wrong):
    """A table with the right number of rows in each partition, but not the right ones."""
    release = write_release(store, 1)
    vectors = ReleaseVectors(store, release.vectors_prefix, release.model.version, release.vectors_sha256)
    table, _ = table_names("look", 1, vectors.named)

    def spoil(target: Target) -> None:
        target.create(table, vectors.shape)
        for partition in range(PARTITIONS):
            rows = vectors.rows(partition)
            if partition == 1:
                name, value = ("item_id", "i9999") if "item" in wrong else ("model_version", "main-00000002")
                values = pa.array([value, *rows[name].to_pylist()[1:]])
                rows = rows.set_column(rows.column_names.index(name), name, values)
            target.load(table, partition, rows, again=False)

    target_now(spoil)
    assert bring(store, place, release).loaded == 24
    assert served(store, place, release)


Change = Callable[[pa.Table], pa.Table]


def with_value(name: str, value: str) -> Change:
    return lambda rows: rows.set_column(
        rows.column_names.index(name), name, pa.array([value, *rows[name].to_pylist()[1:]])
    )


CHANGES: dict[str, Change] = {
    "rows lost": lambda rows: rows.slice(0, 1),
    "a foreign row more": lambda rows: pa.concat_tables([rows, with_value("item_id", "i9999")(rows).slice(0, 1)]),
    "a foreign row instead": with_value("item_id", "i9999"),
    "a row by another model": with_value("model_version", "main-00000002"),
    "another text": with_value("text", "not this"),
    "another vector": lambda rows: rows.set_column(
        rows.column_names.index("vector"), "vector", rows["vector"].take([1, *range(1, rows.num_rows)])
    ),
}


def test_a_served_table_that_somebody_changed_is_replaced_by_the_next_publication(store, place, target_now):
    """By one of the other name, and later by one of the first name again."""
    release = write_release(store, 1)
    vectors = ReleaseVectors(store, release.vectors_prefix, release.model.version, release.vectors_sha256)
    first = table = bring(store, place, release).table
    for name, change in CHANGES.items():
        changed = change(vectors.rows(0))
        target_now(lambda target: target.load(table, 0, changed, again=True))  # noqa: B023
        healed = bring(store, place, release)
        assert (healed.served_before, healed.loaded, healed.dropped) == (table, 24, (table,)), name
        table = healed.table
        assert target_now(lambda target: target.tables()) == [table], name
        assert served(store, place, release), name
    assert bring(store, place, release).loaded == 0
    assert table == first, "an even number of times"


def test_another_workspace_is_refused_unless_it_takes_the_target_over(store, place, tmp_path):
    """A copy of the workspace has releases of the same names, even with the same vectors."""
    own, foreign = write_release(store, 1), DirectoryStore(tmp_path / "staging")
    table = bring(store, place, own).table
    same, other = write_release(foreign, 1), write_release(foreign, 2)
    for release in (same, other):
        for more in ({}, {"swap_alone": True}):
            with pytest.raises(ConfigError, match=r"(?s)/workspace, .*--take-over") as refused:
                bring(foreign, place, release, only_current=False, **more)
            assert foreign.uri in str(refused.value)
    assert served(store, place, own)
    taken = bring(foreign, place, same, only_current=False, take_over=True)
    assert (taken.table, taken.loaded) == (table, 0)
    bring(foreign, place, other)
    assert served(foreign, place, other)
    with pytest.raises(ConfigError, match=r"staging, .*/workspace"):
        bring(store, place, own)
    with pytest.raises(ConfigError, match=r"lineage main, .* german"):
        bring(foreign, place, other, "lineage=german")


def test_a_branch_that_the_lineage_goes_on_with_publishes_to_its_target(store, place):
    bring(store, place, write_release(store, 1))
    branches.begin(store, "main-backfill", "main", None)
    assert bring(store, place, write_release(store, 2), "lineage=main-backfill").table is not None


def test_a_rollback_goes_to_the_second_table_of_a_release_if_it_has_that_one(store, place, target_now):
    old, new = write_release(store, 1), write_release(store, 2)
    make_current(store, old)
    first = bring(store, place, old).table
    vectors = ReleaseVectors(store, old.vectors_prefix, old.model.version, old.vectors_sha256)
    target_now(lambda target: target.load(first, 0, vectors.rows(0).slice(0, 1), again=True))
    second = bring(store, place, old).table
    make_current(store, new)
    bring(store, place, new)
    make_current(store, old)
    assert second != first
    assert bring(store, place, old, swap_alone=True).table == second
    assert served(store, place, old)


def test_a_folder_that_was_changed_together_with_its_manifest_is_not_loaded(store, place):
    release = write_release(store, 1)
    sha256 = read_manifest(store, release.vectors_prefix).sha256
    bring(store, place, release.model_copy(update={"vectors_sha256": sha256}))
    other = write_release(store, 2)
    with pytest.raises(StoreError, match=r"MANIFEST\.json is not"):
        bring(store, place, other.model_copy(update={"vectors_sha256": sha256}))


def test_a_damaged_shard_is_not_loaded(store, place):
    release = write_release(store, 1)
    shard = store.path(f"{release.vectors_prefix}/part-00002.parquet")
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    with pytest.raises(StoreError, match=r"part-00002.parquet does"):
        bring(store, place, release)
    assert place.search(vector_of(store, release, "i0007"), 1) is None


def test_a_client_that_is_not_installed_is_named_with_its_extra(place, monkeypatch):
    target = place.config().publish.targets[0]
    module = {"opensearch": "opensearchpy", "pgvector": "psycopg", "qdrant": "qdrant_client"}.get(
        target.kind, target.kind
    )
    monkeypatch.delitem(sys.modules, f"tasks.worker.export.{target.kind}", raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"{module} .*\[{target.kind}\]"):
        open_target(target)


def test_an_erased_item_is_gone_and_the_table_goes_on_with_its_index(store, place, target_now):
    release = write_release(store, 1)
    table = bring(store, place, release).table
    assert table is not None
    target_now(lambda target: target.erase(table, ["i0007"]))
    assert target_now(lambda target: target.rows_of(table, ["i0007"])) == {}
    assert target_now(lambda target: target.count(table)) == 23
    index = target_now(lambda target: target.index(table))
    assert index is None or index.rows == 23
    ids = [hit.item_id for hit in place.search(vector_of(store, release, "i0007"), 24) or []]
    assert len(ids) == 23
    assert "i0007" not in ids
    assert target_now(lambda target: target.serving()) == table


def test_lancedb_keeps_no_byte_of_an_erased_item(store, tmp_path):
    place = lancedb_place(tmp_path / "target")
    table = bring(store, place, write_release(store, 1)).table
    assert table is not None
    assert found(tmp_path / "target", "i0007")
    with contextlib.closing(open_target(place.config().publish.targets[0])) as target:
        target.erase(table, ["i0007"])
    assert found(tmp_path / "target", "i0007") == []
