import errno
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError

from infra.store.directory import DirectoryStore
from infra.store.manifest import read_manifest
from tasks.contracts.references import CheckpointRef, CheckpointState
from tasks.contracts.workspace import CHECKPOINT
from tasks.foundation.errors import CodeError, FailureClass, StoreError, classify
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.process.job import Rank
from tasks.worker.training.checkpoint import (
    CheckpointWriter,
    ModelParts,
    drop_partials,
    find_partial,
    load_optimizer,
    load_parts,
)
from tasks.worker.training.optimizer import make_optimizer, optimizer_tensors
from tasks.worker.training.start import build_parts
from tests.support.workspace.jobs import CLASSIFIER, FEATURES, all_rows, make_workspace, tiny_config
from tests.support.workspace.states import checkpoint_state

CONFIG = tiny_config(*FEATURES, CLASSIFIER, "model.dropout=0.2")


@dataclass(frozen=True)
class Trained:
    """A model with optimiser state and a workspace for checkpoints of it."""

    store: DirectoryStore
    parts: ModelParts
    optimizer: torch.optim.AdamW

    def writer(self, store: DirectoryStore | None = None) -> CheckpointWriter:
        return CheckpointWriter(store or self.store, self.parts, self.optimizer)

    def write(self, step: int, run_key: str = "run", complete: bool = False) -> CheckpointRef:
        writer = self.writer()
        writer.save(checkpoint_state(step, run_key=run_key, complete=complete))
        ref = writer.wait()
        assert ref is not None
        return ref


@pytest.fixture(scope="module")
def once_trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    store, rows = make_workspace(tmp_path_factory.mktemp("checkpoint"), rows=40)
    parts = build_parts(CONFIG, [all_rows(store, [rows], CONFIG)])
    optimizer = make_optimizer(parts.model, CONFIG.train, CpuAccelerator(Rank(0, 1, 0)))
    for parameter in parts.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return Trained(store, parts, optimizer)


@pytest.fixture
def trained(once_trained: Trained, tmp_path: Path) -> Trained:
    """The same model with an empty workspace."""
    return replace(once_trained, store=DirectoryStore(tmp_path / "workspace"))


def partial(step: int) -> CheckpointState:
    return checkpoint_state(step, complete=False)


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def folders(store: DirectoryStore) -> list[str]:
    return sorted(path.name for path in store.path("lineages/main").iterdir())


def test_a_loaded_checkpoint_equals_what_was_saved(trained: Trained):
    ref = trained.write(7)
    parts = load_parts(trained.store, ref, dropout=0.2)
    before, after = trained.parts.model.state_dict(), parts.model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert parts.model.shape == trained.parts.model.shape
    assert parts.features == trained.parts.features
    assert parts.tokenizer.to_str() == trained.parts.tokenizer.to_str()
    optimizer = make_optimizer(parts.model, CONFIG.train, CpuAccelerator(Rank(0, 1, 0)))
    assert load_optimizer(trained.store, ref, parts.model, optimizer) == partial(7)
    saved = optimizer_tensors(trained.parts.model, trained.optimizer)
    loaded = optimizer_tensors(parts.model, optimizer)
    assert set(loaded) == set(saved)
    assert all(torch.equal(loaded[name], saved[name]) for name in saved)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_the_loader_chooses_the_dropout(trained: Trained, dropout: float):
    parts = load_parts(trained.store, trained.write(7), dropout)
    assert parts.encoder_config.hidden_dropout_prob == dropout
    rates = {module.p for module in parts.model.modules() if isinstance(module, torch.nn.Dropout)}
    assert rates == {dropout}


def test_a_checkpoint_holds_safetensors_and_json_alone(trained: Trained):
    folder = trained.store.local(trained.write(7).prefix)
    files = sorted(folder.iterdir())
    assert {path.suffix for path in files} == {".json", ".safetensors"}
    assert "model.safetensors" in [path.name for path in files]
    for path in files:
        if path.suffix == ".json":
            json.loads(path.read_text())
        else:
            header = int.from_bytes(path.read_bytes()[:8], "little")
            json.loads(path.read_bytes()[8 : 8 + header])


def test_the_name_has_the_step_and_the_manifest_the_run(trained: Trained):
    ref = trained.write(7, complete=True)
    assert ref.prefix == CHECKPOINT.key(lineage="main", step=7) == "lineages/main/step-00000007"
    assert read_manifest(trained.store, ref.prefix).facts == {"step": 7, "run_key": "run", "complete": True}
    assert read_manifest(trained.store, ref.prefix).sha256 == ref.sha256


def test_training_continues_while_a_checkpoint_is_written(trained: Trained):
    writer = trained.writer()
    weight = next(iter(trained.parts.model.parameters()))
    before = weight.detach().clone()
    writer.save(partial(7))
    with torch.no_grad():
        weight.add_(1.0)
    ref = writer.wait()
    with torch.no_grad():
        weight.copy_(before)
    assert ref is not None
    kept = load_parts(trained.store, ref).model
    assert torch.equal(next(iter(kept.parameters())), before)


def test_the_same_state_has_the_same_checksum(trained: Trained):
    first = trained.write(7)
    shutil.rmtree(trained.store.path(first.prefix))
    assert trained.write(7) == first


@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors", "tokenizer.json"])
def test_a_corrupt_checkpoint_names_file_and_way_out(trained: Trained, file: str):
    ref = trained.write(7)
    path = trained.store.local(ref.prefix) / file
    flip_a_byte(path)
    with pytest.raises(StoreError, match="its checksum") as caught:
        load_parts(trained.store, ref)
    assert str(path) in str(caught.value)
    assert "--set lineage=" in str(caught.value)


def test_a_checkpoint_without_manifest_does_not_exist(trained: Trained):
    ref = trained.write(7)
    trained.store.delete(f"{ref.prefix}/MANIFEST.json")
    with pytest.raises(StoreError, match="never completed"):
        load_parts(trained.store, ref)


def test_another_checkpoint_in_the_same_place_is_refused(trained: Trained):
    ref = trained.write(7)
    with pytest.raises(StoreError, match="not the checkpoint"):
        load_parts(trained.store, ref.model_copy(update={"sha256": "0" * 64}))


def test_the_newest_own_checkpoint_is_found(trained: Trained):
    trained.write(4)
    newest = trained.write(8)
    trained.write(12, run_key="another")
    assert find_partial(trained.store, "main", "run", after=0) == newest
    assert find_partial(trained.store, "main", "run", after=8) is None
    assert find_partial(trained.store, "elsewhere", "run", after=0) is None


def test_an_unreadable_manifest_is_quarantined_at_any_step(trained: Trained):
    older, newest = trained.write(4), trained.write(8)
    trained.store.write(f"{older.prefix}/MANIFEST.json", b"{")
    assert find_partial(trained.store, "main", "run", after=0) == newest
    drop_partials(trained.store, "main", "run", after=0, keep=0)
    assert folders(trained.store) == []


def test_checkpoints_before_the_run_are_never_touched(trained: Trained):
    parent = trained.write(4, run_key="earlier", complete=True)
    manifest = f"{parent.prefix}/MANIFEST.json"
    trained.store.write(manifest, b"{")
    assert find_partial(trained.store, "main", "run", after=4) is None
    assert trained.store.read(manifest) == b"{"
    with pytest.raises(StoreError, match="is not a valid manifest"):
        load_parts(trained.store, parent)


def test_unfinished_folders_are_deleted(trained: Trained):
    newest = trained.write(4)
    trained.store.write("lineages/main/step-00000008/model.safetensors", b"half")
    assert find_partial(trained.store, "main", "run", after=0) == newest
    assert folders(trained.store) == ["step-00000004"]


def test_only_the_newest_partial_checkpoints_are_kept(trained: Trained):
    for step in (2, 4, 6):
        trained.write(step)
    trained.write(5, run_key="another")
    trained.write(8, complete=True)
    drop_partials(trained.store, "main", "run", after=0, keep=2)
    assert folders(trained.store) == [f"step-0000000{step}" for step in (4, 5, 6, 8)]
    drop_partials(trained.store, "main", "run", after=0, keep=0)
    assert folders(trained.store) == ["step-00000005", "step-00000008"]


def test_a_partial_checkpoint_of_an_abandoned_run_makes_room(trained: Trained):
    trained.write(4, run_key="given-up")
    ref = trained.write(4)
    assert read_manifest(trained.store, ref.prefix).facts["run_key"] == "run"
    assert trained.store.exists(f"quarantine/{ref.prefix}.1/MANIFEST.json")


def test_a_complete_checkpoint_is_never_replaced(trained: Trained):
    ref = trained.write(4, run_key="released", complete=True)
    with pytest.raises(StoreError, match="something else"):
        trained.write(4)
    assert load_parts(trained.store, ref)


def test_weights_that_are_not_finite_are_not_written(trained: Trained):
    bias = trained.parts.model.classifier.bias  # type: ignore[union-attr]
    before = bias.detach().clone()
    writer = trained.writer()
    with torch.no_grad():
        bias[0] = float("nan")
    writer.save(partial(4))
    with torch.no_grad():
        bias.copy_(before)
    with pytest.raises(CodeError, match=r"step 4 .*classifier\.bias"):
        writer.wait()
    assert not trained.store.list("lineages")


class FullDisk(DirectoryStore):
    """A workspace without room for the optimiser's state."""

    def upload(self, source: Path, key: str, instead_of: str | None = None) -> None:
        if key.endswith("optimizer.safetensors"):
            raise OSError(errno.ENOSPC, "No space left on device", str(self.path(key)))
        super().upload(source, key, instead_of)


@pytest.mark.parametrize("then", ["save", "wait"])
def test_a_full_disk_surfaces_at_the_next_call_and_leaves_no_checkpoint(trained: Trained, then: str):
    full = FullDisk(trained.store.root)
    writer = trained.writer(full)
    writer.save(partial(4))
    with pytest.raises(OSError, match="No space left") as caught:
        writer.save(partial(8)) if then == "save" else writer.wait()
    assert classify(caught.value) == FailureClass.DISK
    assert find_partial(full, "main", "run", after=0) is None
    with pytest.raises(StoreError):
        read_manifest(full, CHECKPOINT.key(lineage="main", step=4))
    assert trained.write(4).step == 4, "with room again the same step can be written"


def test_a_full_temporary_folder_is_a_full_disk():
    error = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert classify(error) == FailureClass.DISK
