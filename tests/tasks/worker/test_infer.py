import contextlib
import datetime as dt
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq
import pytest
import torch

from infra.store.base import sha256_of
from infra.store.directory import DirectoryStore
from infra.store.manifest import MissingFolder, open_files, open_folder, read_manifest
from tasks.contracts.jobs import InferInputs
from tasks.contracts.outcomes import InferOutcome, KeptWork, Phases
from tasks.contracts.references import CatalogueRef, RowsRef, Weights
from tasks.data.rows import part_name, partition_of
from tasks.foundation.errors import CodeError, DataError, StoreError
from tasks.worker import infer
from tasks.worker.process.job import Job, Rank
from tests.support.models.beside import Beside
from tests.support.processes.kills import Kill, infer_and_die
from tests.support.processes.ranks import finish, run_ranks, start
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
)

pc: Any = pyarrow.compute

CONFIG = tiny_config(*FEATURES)  # 100 items in four partitions


class Workspace(NamedTuple):
    """130 rows about 100 items, their catalogue, and a model."""

    store: DirectoryStore
    rows: RowsRef
    inputs: InferInputs

    @property
    def model(self) -> Weights:
        return self.inputs.model


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    store, rows = make_workspace(tmp_path_factory.mktemp("trained"), rows=130, distinct=100)
    model = model_of(train_model(store, CONFIG, rows))
    return Workspace(store, rows, InferInputs(catalogue=make_catalogue(store, CONFIG, rows), model=model))


@pytest.fixture
def workspace(trained: Workspace, tmp_path: Path) -> Workspace:
    """A copy for one test."""
    shutil.copytree(trained.store.root, tmp_path / "workspace")
    return trained._replace(store=DirectoryStore(tmp_path / "workspace"))


def run(workspace: Workspace, attempt: int = 1, **changes: object) -> InferOutcome:
    inputs = workspace.inputs.model_copy(update=changes)
    return infer_alone(make_job(workspace.store, CONFIG, inputs, attempt=attempt))


def of_items(workspace: Workspace, change: Callable[[pa.Table], pa.Table], folder: Path) -> CatalogueRef:
    """The catalogue of the rows after a change."""
    rows = change_rows(workspace.store, workspace.rows, "2026-03", change, folder)
    return make_catalogue(workspace.store, CONFIG, rows)


def read(store: DirectoryStore, prefix: str) -> pa.Table:
    return pa.concat_tables(pq.read_table(path) for path in open_files(store, prefix, "vectors"))


def vectors_of(table: pa.Table) -> np.ndarray:
    return np.stack(table["vector"].to_numpy())


def test_every_item_of_the_catalogue_has_one_unit_vector(workspace: Workspace):
    store, rows, _ = workspace
    outcome = run(workspace)
    table = read(store, outcome.prefix)
    source = pq.read_table(store.path(rows.prefix) / "part-00000.parquet")
    assert sorted(table["item_id"].to_pylist()) == sorted(set(source["item_id"].to_pylist()))
    assert np.linalg.norm(vectors_of(table), axis=1) == pytest.approx(np.ones(100), abs=1e-5)
    assert len(np.unique(vectors_of(table).round(4), axis=0)) > 90, "equal vectors would be useless"
    assert set(table["model_version"].to_pylist()) == {workspace.model.version}
    assert (outcome.vectors, outcome.width, outcome.shards, outcome.shards_reused) == (100, 32, 4, 0)
    assert outcome.texts_per_second > 0
    assert KeptWork.model_validate_json(store.read("runs/run/infer/attempt-1/kept.json")).phases.productive > 0


@pytest.mark.parametrize(("seconds", "times"), [(3600.0, 1), (0.0, 4)])
def test_saved_work_is_recorded_now_and_then(workspace: Workspace, monkeypatch, seconds: float, times: int):
    """Four requests of a bucket for each partition would be an eighth of a refresh."""
    kept = list[Phases]()
    monkeypatch.setattr(Job, "keep", lambda _, phases: kept.append(phases))
    monkeypatch.setattr(infer, "KEEP_SECONDS", seconds)
    assert run(workspace).shards == 4
    assert len(kept) == times


def test_a_shard_holds_a_partition_and_the_texts(workspace: Workspace):
    store, rows, _ = workspace
    folder, manifest = open_folder(store, run(workspace).prefix, "vectors")
    source = pq.read_table(store.path(rows.prefix) / "part-00000.parquet")
    texts = dict(zip(source["item_id"].to_pylist(), source["item"].to_pylist(), strict=True))
    for number, entry in enumerate(manifest.files):
        table = pq.read_table(folder / entry.name)
        assert table.schema.names == ["item_id", "text", "vector", "model_version", "content_sha256"]
        assert table.schema.field("vector").type == pa.list_(pa.float32(), 32)
        assert {partition_of(item_id, 4) for item_id in table["item_id"].to_pylist()} == {number}
        assert [texts[item_id] for item_id in table["item_id"].to_pylist()] == table["text"].to_pylist()
    facts = {"model_version": workspace.model.version, "width": 32, "vectors": 100, "bad": 0, "type": "fp32"}
    assert facts.items() <= manifest.facts.items()
    assert CatalogueRef.model_validate(manifest.facts["catalogue"]) == workspace.inputs.catalogue


def test_reading_ahead_and_writing_behind_change_no_byte(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(infer, "BATCH_ITEMS", 7)
    first = read_manifest(workspace.store, run(workspace).prefix)
    workspace.store.delete("vectors")
    beside = Beside(Rank(0, 1, 0))
    monkeypatch.setattr(infer, "open_accelerator", lambda *_: contextlib.nullcontext(beside))
    again = infer_alone(make_job(workspace.store, CONFIG, workspace.inputs, run_key="beside"))
    assert read_manifest(workspace.store, again.prefix).files == first.files
    assert len(beside.threads) > 1
    assert beside.started == 0


def test_half_precision_vectors_take_half_the_room_and_are_close(workspace: Workspace):
    exact = read(workspace.store, run(workspace).prefix)
    workspace.store.delete("vectors")
    config = tiny_config(*FEATURES, "infer.vectors=fp16")
    halved = infer_alone(make_job(workspace.store, config, workspace.inputs, run_key="fp16"))
    table = read(workspace.store, halved.prefix)
    assert table.schema.field("vector").type == pa.list_(pa.float16(), 32)
    assert vectors_of(table) == pytest.approx(vectors_of(exact), abs=1e-3)


def test_a_second_run_reuses_all_shards(workspace: Workspace):
    store = workspace.store
    first = run(workspace)
    before = read_manifest(store, first.prefix).sha256
    again = run(workspace, attempt=2)
    assert again.shards_reused == 4
    assert read_manifest(store, again.prefix).sha256 == before


def test_vectors_of_unchanged_items_are_reused(workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = run(workspace)
    before = read(workspace.store, first.prefix)

    def changed(rows: pa.Table) -> pa.Table:
        """One item has another text, one is gone, one is new."""
        one, gone, new = sorted(set(rows["item_id"].to_pylist()))[:3]
        rows = rows.filter(pc.not_equal(rows["item_id"], gone))
        pairs = zip(rows["item_id"].to_pylist(), rows["item"].to_pylist(), strict=True)
        texts = [f"{text} again" if item_id == one else text for item_id, text in pairs]
        ids = ["new-item" if item_id == new else item_id for item_id in rows["item_id"].to_pylist()]
        rows = rows.set_column(rows.column_names.index("item"), "item", pa.array(texts))
        return rows.set_column(rows.column_names.index("item_id"), "item_id", pa.array(ids))

    catalogue = of_items(workspace, changed, tmp_path)
    embedded: list[int] = []
    original = infer.embed

    def counting(*args: object, **kwargs: object) -> np.ndarray:
        vectors = original(*args, **kwargs)  # type: ignore[arg-type]
        embedded.append(len(vectors))
        return vectors

    monkeypatch.setattr(infer, "embed", counting)
    outcome = run(workspace, catalogue=catalogue, reuse=first.prefix)
    assert (outcome.vectors, outcome.vectors_reused, sum(embedded)) == (99, 97, 2)
    known = {each["item_id"]: each for each in before.to_pylist()}
    after = read(workspace.store, outcome.prefix).to_pylist()
    same = [each for each in after if known.get(each["item_id"], {}).get("content_sha256") == each["content_sha256"]]
    assert len(same) == 97
    assert outcome.accelerators == ("cpu",)
    assert all(each["vector"] == known[each["item_id"]]["vector"] for each in same)


def run_on_xla(rank: Rank, uri: str, inputs: InferInputs) -> InferOutcome:
    config = tiny_config(*FEATURES, "infer.precision=bf16", "accelerator=xla")
    return infer_alone(make_job(DirectoryStore(Path(uri)), config, inputs, run_key="xla", rank=rank))


def test_vectors_of_two_accelerators_are_close_and_the_manifest_names_both(workspace: Workspace, tmp_path: Path):
    """A refresh on a processor keeps vectors that another device made, in arithmetic of its own."""
    store, inputs = workspace.store, workspace.inputs
    expected = read(store, run(workspace).prefix)
    some = inputs.model_copy(update={"catalogue": of_items(workspace, lambda rows: rows.slice(0, 60), tmp_path)})
    (first,) = run_ranks(1, run_on_xla, store.uri, some)
    store.delete(f"vectors/{inputs.model.version}/{inputs.catalogue.prefix.rpartition('/')[2]}")
    second = infer_alone(make_job(store, CONFIG, inputs.model_copy(update={"reuse": first.prefix}), run_key="refresh"))
    assert 0 < second.vectors_reused < second.vectors == 100
    assert (first.accelerators, second.accelerators) == (("xla",), ("cpu", "xla"))
    assert read_manifest(store, second.prefix).facts["accelerators"] == ["cpu", "xla"]
    mixed = read(store, second.prefix)
    assert mixed["item_id"] == expected["item_id"]
    assert (vectors_of(mixed) * vectors_of(expected)).sum(axis=1).min() > 0.999


def test_shards_of_unchanged_partitions_are_named_where_they_truly_lie(workspace: Workspace, tmp_path: Path):
    """A chain of refreshes, each with one changed item: no manifest names a manifest, and all vectors are there."""
    outcome, store, rows = run(workspace), workspace.store, workspace.rows
    places = {f"{outcome.prefix}/part-{number:05d}.parquet" for number in range(4)}
    catalogue = workspace.inputs.catalogue
    for step in range(3):
        item_id = sorted(set(pq.read_table(store.path(rows.prefix) / "part-00000.parquet")["item_id"].to_pylist()))[
            step
        ]

        def changed(table: pa.Table, item_id: str = item_id) -> pa.Table:
            pairs = zip(table["item_id"].to_pylist(), table["item"].to_pylist(), strict=True)
            texts = [f"{text} again" if each == item_id else text for each, text in pairs]
            return table.set_column(table.column_names.index("item"), "item", pa.array(texts))

        (tmp_path / str(step)).mkdir()
        rows = change_rows(store, rows, f"2026-{4 + step:02d}", changed, tmp_path / str(step))
        catalogue = make_catalogue(store, CONFIG, rows)
        number = partition_of(item_id, 4)
        before, outcome = outcome, run(workspace, catalogue=catalogue, reuse=outcome.prefix)
        assert (outcome.vectors, outcome.vectors_reused, outcome.bad) == (100, 99, 0)
        assert store.list(outcome.prefix) == [
            f"{outcome.prefix}/MANIFEST.json",
            f"{outcome.prefix}/part-{number:05d}.parquet",
        ]
        entries = read_manifest(store, outcome.prefix).files
        places = {each for each in places if not each.endswith(part_name(number))}
        places.add(f"{outcome.prefix}/{part_name(number)}")
        assert {entry.key(outcome.prefix) for entry in entries} == places
        assert len(set(read(store, outcome.prefix)["item_id"].to_pylist())) == 100
        assert outcome.ids_sha256 == before.ids_sha256


def test_a_refresh_after_a_rollback_has_the_vectors_of_a_full_inference(workspace: Workspace, tmp_path: Path):
    """Vectors of a refresh that was taken back are still in the workspace, and none of them may come in."""
    store, first = workspace.store, run(workspace)

    def renamed(names: set[str], more: str, span: str) -> CatalogueRef:
        def change(table: pa.Table) -> pa.Table:
            pairs = zip(table["item_id"].to_pylist(), table["item"].to_pylist(), strict=True)
            texts = [text + more if each in names else text for each, text in pairs]
            return table.set_column(table.column_names.index("item"), "item", pa.array(texts))

        (tmp_path / span).mkdir()
        return make_catalogue(store, CONFIG, change_rows(store, workspace.rows, span, change, tmp_path / span))

    one, two, three = sorted(read(store, first.prefix)["item_id"].to_pylist())[:3]
    run(workspace, catalogue=renamed({one, two}, " taken back", "2026-04"), reuse=first.prefix)
    inputs = workspace.inputs.model_copy(update={"catalogue": renamed({one, three}, " again", "2026-05")})
    refresh = inputs.model_copy(update={"reuse": first.prefix})
    after = infer_alone(make_job(store, CONFIG, refresh, run_key="after"))
    assert after.vectors - after.vectors_reused == 2
    found = read(store, after.prefix)
    store.delete("vectors")
    full = read(store, infer_alone(make_job(store, CONFIG, inputs, run_key="full")).prefix)
    columns = ["item_id", "text", "content_sha256"]
    assert found.select(columns) == full.select(columns)
    np.testing.assert_allclose(vectors_of(found), vectors_of(full), atol=1e-6)


def test_items_with_another_time_alone_write_no_shard(workspace: Workspace, tmp_path: Path):
    """An export that gives each item the time of the export changes all files of the catalogue and no vector."""
    first, store = run(workspace), workspace.store

    def exported(table: pa.Table) -> pa.Table:
        return table.set_column(table.column_names.index("time"), "time", pc.add(table["time"], dt.timedelta(days=1)))

    catalogue = of_items(workspace, exported, tmp_path)
    outcome = run(workspace, catalogue=catalogue, reuse=first.prefix)
    assert catalogue != workspace.inputs.catalogue
    assert store.list(outcome.prefix) == [f"{outcome.prefix}/MANIFEST.json"]
    assert {entry.at for entry in read_manifest(store, outcome.prefix).files} == {
        f"{first.prefix}/{part_name(number)}" for number in range(4)
    }
    assert read(store, outcome.prefix) == read(store, first.prefix)


@pytest.mark.parametrize("damage", ["catalogue gone", "other settings"])
def test_shards_are_made_again_unless_the_earlier_ones_fit(workspace: Workspace, tmp_path: Path, damage: str):
    store, first = workspace.store, run(workspace)
    config = tiny_config(*FEATURES, "infer.vectors=fp16") if damage == "other settings" else CONFIG
    catalogue = of_items(workspace, lambda rows: rows.filter(pc.not_equal(rows["item_id"], "i1")), tmp_path)
    if damage == "catalogue gone":
        store.delete(workspace.inputs.catalogue.prefix)
    inputs = workspace.inputs.model_copy(update={"catalogue": catalogue, "reuse": first.prefix})
    outcome = infer_alone(make_job(store, config, inputs, attempt=2))
    assert not any(entry.at for entry in read_manifest(store, outcome.prefix).files)
    assert read(store, outcome.prefix).num_rows == outcome.vectors == catalogue.items


def test_vectors_of_another_model_are_never_reused(workspace: Workspace):
    first = run(workspace)
    other = workspace.model.model_copy(update={"version": "another"})
    with pytest.raises(StoreError, match=f"{workspace.model.version}, "):
        run(workspace, attempt=2, model=other, reuse=first.prefix)


UPLOAD = "infra.store.directory:DirectoryStore.upload"
CREATE = "infra.store.directory:DirectoryStore.create"
KILLS = {
    "before any shard": (Kill("tasks.worker.infer:embed", 1, "before"), 0),
    "after a shard's file, before its note": (Kill(UPLOAD, 1, about="part-00001.parquet"), 1),
    "after the second shard": (Kill("tasks.worker.infer:Shards.commit", 2), 2),
    "before the manifest": (Kill(CREATE, 1, "before", about="MANIFEST.json"), 4),
    "after the manifest": (Kill(CREATE, 1, about="MANIFEST.json"), 4),
}


@pytest.mark.parametrize("place", KILLS)
def test_a_killed_inference_reuses_its_complete_shards(workspace: Workspace, tmp_path: Path, place: str):
    store = workspace.store
    kill, reused = KILLS[place]
    assert finish(start(infer_and_die, make_job(store, CONFIG, workspace.inputs).spec, kill)) == -signal.SIGKILL
    if place != "after the manifest":
        with pytest.raises(MissingFolder):
            open_folder(store, workspace.inputs.vectors, "vectors")
    outcome = run(workspace, attempt=2)
    assert outcome.shards_reused == reused
    shutil.copytree(store.root, tmp_path / "unbroken")
    unbroken = DirectoryStore(tmp_path / "unbroken")
    unbroken.delete("vectors")
    infer_alone(make_job(unbroken, CONFIG, workspace.inputs, run_key="unbroken"))
    assert read_manifest(store, outcome.prefix) == read_manifest(unbroken, outcome.prefix)
    assert read(store, outcome.prefix) == read(unbroken, outcome.prefix)


@pytest.mark.parametrize("damage", ["a flipped byte", "gone"])
def test_a_corrupt_shard_of_an_earlier_attempt_is_made_again(workspace: Workspace, damage: str):
    store = workspace.store
    prefix = run(workspace).prefix
    path = store.path(f"{prefix}/part-00001.parquet")
    whole = sha256_of(path)
    if damage == "gone":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert run(workspace, attempt=2).shards_reused == 3
    assert sha256_of(path) == whole
    open_folder(store, prefix, "vectors")


def ruin(monkeypatch: pytest.MonkeyPatch, rows: slice, value: float) -> None:
    """Let the vectors of some rows of the first batch be no unit vectors."""
    original, calls = infer.embed, []

    def ruined(*args: object, **kwargs: object) -> np.ndarray:
        vectors = original(*args, **kwargs)  # type: ignore[arg-type]
        if not calls:
            vectors[rows] *= value
        calls.append(None)
        return vectors

    monkeypatch.setattr(infer, "embed", ruined)


@pytest.mark.parametrize("value", [float("nan"), 3.0], ids=["not a number", "not of unit length"])
def test_a_bad_item_is_set_apart_with_its_reason(workspace: Workspace, monkeypatch: pytest.MonkeyPatch, value: float):
    ruin(monkeypatch, slice(5, 6), value)
    config = tiny_config(*FEATURES, "infer.max_bad_share=0.01")
    outcome = infer_alone(make_job(workspace.store, config, workspace.inputs))
    assert (outcome.vectors, outcome.bad) == (99, 1)
    assert outcome.quarantine is not None
    (bad,) = pq.read_table(workspace.store.path(outcome.quarantine)).to_pylist()
    assert bad["item_id"] not in read(workspace.store, outcome.prefix)["item_id"].to_pylist()
    assert "not finite" in bad["reason"]


def test_too_many_bad_items_stop_the_run(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    ruin(monkeypatch, slice(5, 6), 3.0)
    with pytest.raises(CodeError, match=r"1 of 100 .*share 0\.001"):
        run(workspace)
    assert not workspace.store.exists(f"{workspace.inputs.vectors}/MANIFEST.json")


def test_a_batch_without_one_good_vector_stops_the_run_at_once(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    ruin(monkeypatch, slice(None), float("nan"))
    with pytest.raises(CodeError, match="should not be released"):
        run(workspace)
    assert not workspace.store.list("vectors")


def test_a_catalogue_without_items_is_an_error_of_the_data(workspace: Workspace, tmp_path: Path):
    with pytest.raises(DataError, match="no live item to embed"):
        run(workspace, catalogue=of_items(workspace, lambda table: table.slice(0, 0), tmp_path))


def test_notes_that_lack_an_item_are_found(workspace: Workspace):
    run(workspace)
    catalogue = workspace.inputs.catalogue.model_copy(update={"items": 101})
    with pytest.raises(StoreError, match=r"100 vectors .*101 items"):
        run(workspace, catalogue=catalogue)


def run_as_rank(rank: Rank, uri: str, inputs: InferInputs) -> InferOutcome | None:
    return infer.run(make_job(DirectoryStore(Path(uri)), CONFIG, inputs, run_key="two", rank=rank))


def test_two_workers_make_the_same_vectors_as_one(workspace: Workspace):
    store = workspace.store
    alone = run(workspace)
    expected = read(store, alone.prefix)
    store.delete("vectors")
    together, other = run_ranks(2, run_as_rank, store.uri, workspace.inputs)
    assert other is None
    assert (together.vectors, together.shards, together.shards_reused) == (100, 4, 0)
    assert read(store, together.prefix) == expected


def test_a_worker_asks_once_about_all_that_others_have_done_meanwhile(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
):
    """The second worker sees all 16 partitions open before the first makes them, and then takes its turn."""
    config = tiny_config(*FEATURES, "infer.shard_rows=10")
    catalogue = make_catalogue(workspace.store, config, workspace.rows)
    inputs = workspace.inputs.model_copy(update={"catalogue": catalogue})
    begun, held, asked = infer.Shards.begin, infer.hold, []

    def late(shards: infer.Shards) -> list[int]:
        found = begun(shards)
        monkeypatch.setattr(infer.Shards, "begin", begun)
        assert found == list(range(8, 16))
        assert infer_alone(make_job(workspace.store, config, inputs)).shards == 16
        monkeypatch.setattr(infer, "hold", lambda store, key, *_: asked.append(key) or held(store, key, *_))
        return found

    monkeypatch.setattr(infer.Shards, "begin", late)
    assert infer.run(make_job(workspace.store, config, inputs, rank=Rank(0, 1, 0, child=1, children=2))) is None
    assert len(asked) == 1


def test_bf16_vectors_are_close_to_fp32(workspace: Workspace):
    exact = vectors_of(read(workspace.store, run(workspace).prefix))
    workspace.store.delete("vectors")
    config = tiny_config(*FEATURES, "infer.precision=bf16")
    outcome = infer_alone(make_job(workspace.store, config, workspace.inputs, run_key="bf16"))
    rounded = vectors_of(read(workspace.store, outcome.prefix))
    assert (exact * rounded).sum(axis=1).min() > 0.999
    assert not torch.equal(torch.from_numpy(exact), torch.from_numpy(rounded))


@pytest.mark.parametrize(("compute", "target"), [("batch", "inf2"), ("local", "trn1")])
def test_the_compiler_aims_at_the_machines_that_infer_runs_on(compute: str, target: str):
    machines = "{queue: q, definition: d, processes_per_node: 2, instance: inf2.xlarge, target: inf2}"
    config = tiny_config(f"infer.compute={compute}", f"batch.infer={machines}")
    assert infer.with_infer_compiler(config).compiler.target == target
    assert config.compiler.target == "trn1"
