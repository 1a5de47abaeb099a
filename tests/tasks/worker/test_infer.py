import shutil
import signal
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from infra.store.base import sha256_of
from infra.store.directory import DirectoryStore
from infra.store.manifest import MissingFolder, open_folder, read_manifest
from tasks.contracts.jobs import InferInputs, JobSpec
from tasks.contracts.outcomes import InferOutcome
from tasks.contracts.references import ModelRef, RowsRef
from tasks.foundation.errors import CodeError, DataError, StoreError
from tasks.worker import infer
from tasks.worker.process.job import Rank
from tests.support.processes.kills import Kill, infer_and_die
from tests.support.processes.ranks import finish, run_ranks, start
from tests.support.workspace.jobs import (
    FEATURES,
    change_rows,
    infer_vectors,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
)

CONFIG = tiny_config(*FEATURES)  # 100 items in shards of 40, 40 and 20


class Workspace(NamedTuple):
    """130 rows about 100 items, and a model."""

    store: DirectoryStore
    rows: RowsRef
    model: ModelRef


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    store, rows = make_workspace(tmp_path_factory.mktemp("trained"), rows=130, distinct=100)
    return Workspace(store, rows, model_of(train_model(store, CONFIG, rows)))


@pytest.fixture
def workspace(trained: Workspace, tmp_path: Path) -> Workspace:
    """A copy for one test."""
    store, rows, model = trained
    shutil.copytree(store.root, tmp_path / "workspace")
    return Workspace(DirectoryStore(tmp_path / "workspace"), rows, model)


def run(workspace: Workspace) -> InferOutcome:
    store, rows, model = workspace
    return infer_vectors(store, CONFIG, rows, model)


def spec_of(workspace: Workspace) -> JobSpec:
    store, rows, model = workspace
    return make_job(store, CONFIG, InferInputs(rows=rows, model=model)).spec


def read(store: DirectoryStore, prefix: str) -> pa.Table:
    folder, manifest = open_folder(store, prefix, "vectors")
    return pa.concat_tables(pq.read_table(folder / entry.name) for entry in manifest.files)


def vectors_of(table: pa.Table) -> np.ndarray:
    return np.stack(table["vector"].to_numpy())


def test_every_distinct_item_has_one_unit_vector(workspace: Workspace):
    store, rows, model = workspace
    outcome = run(workspace)
    table = read(store, outcome.prefix)
    source = pq.read_table(store.path(rows.prefix) / "part-00000.parquet")
    assert table["item_id"].to_pylist() == sorted(set(source["item_id"].to_pylist()))
    assert np.linalg.norm(vectors_of(table), axis=1) == pytest.approx(np.ones(100), abs=1e-5)
    assert len(np.unique(vectors_of(table).round(4), axis=0)) > 90, "equal vectors would be useless"
    assert set(table["model_version"].to_pylist()) == {model.version}
    assert (outcome.vectors, outcome.width, outcome.shards, outcome.shards_reused) == (100, 32, 3, 0)
    assert outcome.texts_per_second > 0


def test_shards_are_of_a_fixed_type_and_size(workspace: Workspace):
    store, _, model = workspace
    folder, manifest = open_folder(store, run(workspace).prefix, "vectors")
    assert [pq.read_metadata(folder / entry.name).num_rows for entry in manifest.files] == [40, 40, 20]
    for entry in manifest.files:
        schema = pq.read_schema(folder / entry.name)
        assert schema.field("vector").type == pa.list_(pa.float32(), 32)
        assert schema.field("item_id").type == pa.string()
    facts = {"model_version": model.version, "span": "2026-01", "width": 32, "vectors": 100, "shards": 3}
    assert manifest.facts == facts


def test_each_vector_is_of_the_last_text_about_its_item(workspace: Workspace, tmp_path: Path):
    store, rows, model = workspace
    table = read(store, run(workspace).prefix)
    # The same items alone, each in a span without the earlier rows about it.
    source = pq.read_table(store.path(rows.prefix) / "part-00000.parquet")
    last = {item_id: row for row, item_id in enumerate(source["item_id"].to_pylist())}
    kept = source.take(sorted(last.values()))
    alone = change_rows(store, rows, "2026-03", lambda _: kept, tmp_path)
    other = read(store, infer_vectors(store, CONFIG, alone, model).prefix)
    assert other["item_id"].to_pylist() == table["item_id"].to_pylist()
    assert vectors_of(other) == pytest.approx(vectors_of(table), abs=1e-6)


def test_a_second_run_reuses_all_shards(workspace: Workspace):
    store = workspace[0]
    first = run(workspace)
    before = read_manifest(store, first.prefix).sha256
    again = run(workspace)
    assert again.shards_reused == 3
    assert read_manifest(store, again.prefix).sha256 == before


UPLOAD = "infra.store.directory:DirectoryStore.upload"
KILLS = {
    "before any shard": (Kill("tasks.worker.infer:_embed_shard", 1, "before"), 0),
    "after a shard's file, before its note": (Kill(UPLOAD, 1, about="part-00001.parquet"), 1),
    "after the second shard": (Kill("tasks.worker.infer:Shards.write", 2), 2),
    "before the manifest": (Kill("infra.store.directory:DirectoryStore.write", 1, "before", about="MANIFEST.json"), 3),
    "after the manifest": (Kill("infra.store.directory:DirectoryStore.write", 1, about="MANIFEST.json"), 3),
}


@pytest.mark.parametrize("place", KILLS)
def test_a_killed_inference_reuses_its_complete_shards(workspace: Workspace, tmp_path: Path, place: str):
    store, _, model = workspace
    kill, reused = KILLS[place]
    assert finish(start(infer_and_die, spec_of(workspace), kill)) == -signal.SIGKILL
    if place != "after the manifest":
        with pytest.raises(MissingFolder):
            open_folder(store, f"vectors/{model.version}/2026-01", "vectors")
    outcome = run(workspace)
    assert outcome.shards_reused == reused
    unbroken_store, unbroken_rows = make_workspace(tmp_path / "unbroken", rows=130, distinct=100)
    train_model(unbroken_store, CONFIG, unbroken_rows)
    unbroken = infer_vectors(unbroken_store, CONFIG, unbroken_rows, model)
    assert read_manifest(store, outcome.prefix) == read_manifest(unbroken_store, unbroken.prefix)
    assert read(store, outcome.prefix) == read(unbroken_store, unbroken.prefix)


@pytest.mark.parametrize("damage", ["a flipped byte", "gone"])
def test_a_corrupt_shard_is_made_again(workspace: Workspace, damage: str):
    store = workspace[0]
    prefix = run(workspace).prefix
    path = store.path(f"{prefix}/part-00001.parquet")
    whole = sha256_of(path)
    if damage == "gone":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    assert run(workspace).shards_reused == 2
    assert sha256_of(path) == whole
    open_folder(store, prefix, "vectors")


@pytest.mark.parametrize("value", [float("nan"), 3.0], ids=["not a number", "not of unit length"])
def test_a_bad_vector_stops_the_run_before_its_shard_is_written(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch, value: float
):
    store, _, model = workspace
    original, calls = infer.embed, []

    def ruined(*args: object, **kwargs: object) -> np.ndarray:
        vectors = original(*args, **kwargs)  # type: ignore[arg-type]
        calls.append(None)
        if len(calls) == 2:  # the second shard, which begins with the 41st item
            vectors[5] *= value
        return vectors

    monkeypatch.setattr(infer, "embed", ruined)
    with pytest.raises(CodeError, match="not finite or not of unit length") as caught:
        run(workspace)
    assert repr(sorted_items(workspace)[45]) in str(caught.value)
    written = {key.rpartition("/")[2] for key in store.list(f"vectors/{model.version}")}
    assert written == {"part-00000.parquet"}


def sorted_items(workspace: Workspace) -> list[str]:
    store, rows, _ = workspace
    return sorted(set(pq.read_table(store.path(rows.prefix) / "part-00000.parquet")["item_id"].to_pylist()))


def test_a_span_without_items_is_an_error_of_the_data(workspace: Workspace, tmp_path: Path):
    store, rows, model = workspace
    empty = change_rows(store, rows, "2026-04", lambda table: table.slice(0, 0), tmp_path)
    with pytest.raises(DataError, match="span 2026-04 has no item to embed"):
        infer_vectors(store, CONFIG, empty, model)


def test_a_shard_with_too_few_vectors_is_found(workspace: Workspace):
    store, rows, model = workspace
    run(workspace)
    store.delete(f"vectors/{model.version}/2026-01/MANIFEST.json")
    shards = infer.Shards(store, f"vectors/{model.version}/2026-01", spec_of(workspace).stage_prefix)
    shards.write(1, pa.chunked_array([["a"]]), np.ones((1, 1), np.float32), model.version)
    with pytest.raises(StoreError, match="61 vectors, expected 100"):
        infer_vectors(store, CONFIG, rows, model)


def run_as_rank(rank: Rank, uri: str, inputs: InferInputs) -> InferOutcome | None:
    return infer.run(make_job(DirectoryStore(Path(uri)), CONFIG, inputs, run_key="two", rank=rank))


def test_two_workers_make_the_same_vectors_as_one(workspace: Workspace):
    store, rows, model = workspace
    alone = run(workspace)
    expected = read(store, alone.prefix)
    store.delete(f"vectors/{model.version}")
    ended = run_ranks(2, run_as_rank, store.uri, InferInputs(rows=rows, model=model))
    outcomes = [outcome for outcome in ended if outcome is not None]
    assert {(each.vectors, each.shards, each.shards_reused) for each in outcomes} == {(100, 3, 0)}
    table = read(store, outcomes[0].prefix)
    assert table["item_id"] == expected["item_id"]
    assert vectors_of(table) == pytest.approx(vectors_of(expected), abs=1e-6)


def test_bf16_vectors_are_close_to_fp32(workspace: Workspace):
    store, rows, model = workspace
    exact = vectors_of(read(store, run(workspace).prefix))
    store.delete(f"vectors/{model.version}")
    config = tiny_config(*FEATURES, "infer.precision=bf16")
    job = make_job(store, config, InferInputs(rows=rows, model=model), run_key="bf16")
    outcome = infer.run(job)
    assert outcome is not None
    rounded = vectors_of(read(store, outcome.prefix))
    assert (exact * rounded).sum(axis=1).min() > 0.999
    assert not torch.equal(torch.from_numpy(exact), torch.from_numpy(rounded))
