"""The release of a refresh: its changed shards are proved; all vectors are searched only after many changes."""

import sys
from collections.abc import Callable
from pathlib import Path
from subprocess import run as run_process
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from infra.store.base import sha256_of
from infra.store.directory import DirectoryStore
from infra.store.manifest import FileEntry, read_manifest, seal
from infra.store.records import place
from tasks.contracts.jobs import Carried, InferInputs, ReleaseInputs
from tasks.contracts.outcomes import ReleaseOutcome
from tasks.contracts.references import CatalogueRef, ReleasedRef, RowsRef
from tasks.contracts.search import Changes
from tasks.data import layers
from tasks.data.rows import partition_of
from tasks.foundation.errors import CodeError, StoreError
from tasks.worker import release
from tasks.worker.catalogue import deltas, records
from tasks.worker.search import proof
from tests.support.fakes.own_process import encode_here
from tests.support.workspace.jobs import (
    FEATURES,
    change_rows,
    infer_alone,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
    with_held,
)

CONFIG = tiny_config(*FEATURES)


class World:
    """A release of 100 items, and its refresh with one other text."""

    def __init__(self, folder: Path) -> None:
        self.store, self.rows = make_workspace(folder, rows=130, distinct=100)
        self.model = model_of(train_model(self.store, CONFIG, self.rows))
        self.before = self.embedded(self.rows, None)
        made = self.released(self.before[0], self.before[1])
        self.carried = Carried(release=self.named(made), metrics=made.metrics, unsearched=0)
        self.after = self.embedded(change_rows(self.store, self.rows, "2026-04", _renamed, folder), self.before[1])

    def embedded(self, rows: RowsRef, reuse: str | None) -> tuple[CatalogueRef, str]:
        catalogue = make_catalogue(self.store, CONFIG, rows)
        inputs = InferInputs(catalogue=catalogue, model=self.model, reuse=reuse)
        return catalogue, infer_alone(make_job(self.store, CONFIG, inputs)).prefix

    def named(self, made: ReleaseOutcome) -> ReleasedRef:
        return ReleasedRef(
            number=1,
            model_version=self.model.version,
            model_prefix=made.model,
            vectors_prefix=self.before[1],
            model_sha256=read_manifest(self.store, made.model).sha256,
            vectors_sha256=read_manifest(self.store, self.before[1]).sha256,
        )

    def released(self, catalogue: CatalogueRef, vectors: str, carried: Carried | None = None) -> ReleaseOutcome:
        rows = with_held(self.store, CONFIG, self.rows)
        sha256 = carried.release.model_sha256 if carried is not None else None
        inputs = ReleaseInputs(
            model=self.model, vectors=vectors, catalogue=catalogue, rows=rows, carried=carried, model_sha256=sha256
        )
        with pytest.MonkeyPatch.context() as patch:
            encode_here(patch)
            return release.release(make_job(self.store, CONFIG, inputs))

    def refreshed(self, unsearched: int = 0) -> ReleaseOutcome:
        return self.released(*self.after, self.carried.model_copy(update={"unsearched": unsearched}))


def _renamed(table: pa.Table) -> pa.Table:
    first = min(table["item_id"].to_pylist())
    pairs = zip(table["item_id"].to_pylist(), table["item"].to_pylist(), strict=True)
    texts = pa.array([f"{text} again" if each == first else text for each, text in pairs])
    return table.set_column(table.column_names.index("item"), "item", texts)


def _all_renamed(table: pa.Table) -> pa.Table:
    texts = pa.array([f"{text} again" for text in table["item"].to_pylist()])
    return table.set_column(table.column_names.index("item"), "item", texts)


def _renamed_two(table: pa.Table) -> pa.Table:
    """Also the second item of the first one's partition."""
    ids = sorted(set(table["item_id"].to_pylist()))
    both = [each for each in ids if partition_of(each, 4) == partition_of(ids[0], 4)][:2]
    pairs = zip(table["item_id"].to_pylist(), table["item"].to_pylist(), strict=True)
    texts = pa.array([f"{text} again" if each in both else text for each, text in pairs])
    return table.set_column(table.column_names.index("item"), "item", texts)


def _without_first(table: pa.Table) -> pa.Table:
    first = min(table["item_id"].to_pylist())
    return table.filter(pa.array([each != first for each in table["item_id"].to_pylist()]))


def delta_of(store: DirectoryStore, prefix: str) -> tuple[int, FileEntry]:
    """The only delta of some vectors, and its partition."""
    ((number, (_, entry)),) = (
        (number, files) for number, files in layers.layers_of(read_manifest(store, prefix)).items() if len(files) > 1
    )
    return number, entry


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_few_changes_are_proved_alone_and_many_search_all_vectors(world: World, monkeypatch: pytest.MonkeyPatch):
    few = world.refreshed()
    assert (few.queries, few.unsearched, few.metrics) == (0, 1, world.carried.metrics)
    assert few.probed > 0
    assert few.min_cosine > 0.999
    assert few.changes is not None
    changes = Changes.model_validate_json(world.store.read(few.changes))
    assert (changes.before, changes.same_model, changes.items_before, changes.items_after) == (1, True, 100, 100)
    assert (changes.new_items, changes.gone_items, changes.changed_items, changes.shared.items) == (0, 0, 1, 100)
    many = world.refreshed(unsearched=1)  # two of a hundred
    assert (many.queries > 0, many.unsearched) == (True, 0)


def test_a_shard_with_other_items_or_vectors_is_not_released(world: World, monkeypatch: pytest.MonkeyPatch):
    inputs = ReleaseInputs(model=world.model, vectors=world.after[1], catalogue=world.before[0], carried=world.carried)
    few = proof.few_changes(world.store, inputs)
    assert few is not None
    job = make_job(world.store, CONFIG, inputs)
    with pytest.raises(CodeError, match="vectors of other items"):
        proof.prove_changes(job, inputs, few, None)  # type: ignore[arg-type]
    (entry,) = (entry for entry in few.now.manifest.files if entry.at is None)
    world.store.path(entry.key(world.after[1])).write_bytes(b"damaged")
    with pytest.raises(StoreError, match="bytes, but"):
        world.refreshed()


@pytest.fixture
def layered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The refresh wrote a delta, which would not be worth while over shards of so few items."""
    for module in (layers, deltas):
        monkeypatch.setattr(module, "DELTA_SHARE", 10.0)
    return World(tmp_path)


def test_a_delta_is_proved_without_the_shard_below_it(layered: World) -> None:
    number, _ = delta_of(layered.store, layered.after[1])
    shard = layers.layers_of(read_manifest(layered.store, layered.before[1]))[number][0]
    layered.store.path(shard.key(layered.before[1])).write_bytes(b"x" * shard.bytes)
    made = layered.refreshed()
    assert (made.queries, made.unsearched, made.probed) == (0, 1, 1)
    assert read_manifest(layered.store, layered.after[1]).version == 2


def test_manifests_are_read_once_however_many_partitions_have_changed(
    layered: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest names each partition: read for each of them, a proof would take the square of their number."""
    monkeypatch.setattr(proof, "UNSEARCHED_SHARE", 1.0)
    after = layered.embedded(
        change_rows(layered.store, layered.rows, "2026-05", _all_renamed, tmp_path), layered.before[1]
    )
    looked: list[int] = []
    for vectors in (layered.after, after):
        reads: list[None] = []
        with pytest.MonkeyPatch.context() as patch:
            for module, name in ((proof, "layers_of"), (records, "read_manifest")):
                patch.setattr(module, name, _counting(getattr(module, name), reads))
            assert layered.released(*vectors, layered.carried).queries == 0
        looked.append(len(reads))
    assert looked[0] == looked[1]


def _counting(function: Callable[..., Any], calls: list[None]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        calls.append(None)
        return function(*arguments)

    return counted


@pytest.mark.parametrize("what", ["merged", "gone"])
def test_merged_deltas_and_removing_ones_are_proved_too(
    layered: World, tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "UNSEARCHED_SHARE", 0.02)  # one of 99 items is gone
    _, first = delta_of(layered.store, layered.after[1])
    change = _renamed_two if what == "merged" else _without_first
    before = layered.after if what == "merged" else layered.before
    after = layered.embedded(change_rows(layered.store, layered.rows, "2026-05", change, tmp_path), before[1])
    named = {"vectors_prefix": before[1], "vectors_sha256": read_manifest(layered.store, before[1]).sha256}
    of = layered.carried.release.model_copy(update=named)
    made = layered.released(*after, layered.carried.model_copy(update={"release": of}))
    _, second = delta_of(layered.store, after[1])
    assert second.sha256 != first.sha256
    assert (made.queries, made.unsearched) == (0, 1)
    assert made.probed == 2 if what == "merged" else made.probed > 2, "of the shard: the delta has no vector"


@pytest.mark.parametrize("wrong", ["lacks an item", "has another content", "removes another item", "another vector"])
def test_a_delta_that_is_not_the_difference_of_the_catalogues_is_not_released(
    layered: World, tmp_path: Path, wrong: str
) -> None:
    store, (catalogue, prefix) = layered.store, layered.after
    number, entry = delta_of(store, prefix)
    rows = pq.read_table(store.path(entry.key(prefix)))
    shard = pq.read_table(store.path(layers.layers_of(read_manifest(store, prefix))[number][0].key(prefix)))
    match wrong:
        case "lacks an item":
            rows = rows.slice(1)
        case "has another content":
            rows = rows.set_column(4, "content_sha256", pa.array(["0" * 64]))
        case "removes another item":
            item_id = (set(shard["item_id"].to_pylist()) - set(rows["item_id"].to_pylist())).pop()
            gone = {name: pa.nulls(1, rows.schema.field(name).type) for name in rows.column_names}
            gone["item_id"] = pa.array([item_id])
            rows = layers.merged([rows, pa.table(gone, schema=rows.schema)])
        case _:
            rows = rows.set_column(2, rows.schema.field(2), shard["vector"].slice(5, 1))
    pq.write_table(rows, tmp_path / entry.name)
    made = FileEntry(
        name=entry.name, bytes=(tmp_path / entry.name).stat().st_size, sha256=sha256_of(tmp_path / entry.name)
    )
    manifest, other = read_manifest(store, prefix), f"{prefix}-other"
    place(store, tmp_path / entry.name, made.key(other))
    files = tuple(made if each == entry else each.named_from(prefix) for each in manifest.files)
    seal(store, other, files, manifest.kind, manifest.facts, version=2)
    match = "below release.min_cosine" if wrong == "another vector" else "vectors of other items"
    with pytest.raises(CodeError, match=match):
        layered.released(catalogue, other, layered.carried)


@pytest.mark.parametrize("lost", ["vectors", "model"])
def test_without_the_refreshed_release_all_vectors_are_searched(world: World, lost: str):
    of = world.carried.release
    world.store.delete(of.model_prefix if lost == "model" else f"{of.vectors_prefix}/MANIFEST.json")
    assert world.refreshed().queries > 0


def test_a_refresh_loads_no_module_of_training():
    code = (
        "import sys, tasks.worker.infer, tasks.worker.release; "
        "print(*(m for m in sys.modules if m.split('.')[0] in ('sentence_transformers', 'sklearn') "
        "or m in ('tasks.worker.training.optimizer', 'tasks.worker.training.losses', 'tasks.worker.training.batches')))"
    )
    done = run_process([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
