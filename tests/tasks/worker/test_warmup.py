from collections.abc import Iterable
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import WarmupInputs
from tasks.contracts.outcomes import TrainOutcome, WarmupOutcome
from tasks.contracts.references import RowsRef
from tasks.foundation.errors import ConfigError
from tasks.worker import warmup
from tasks.worker.training.batches import Batch
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.loop import TrainStep
from tasks.worker.training.pair_arrays import Pairs
from tests.support.workspace.jobs import make_job, make_workspace, tiny_config, train_model

Workspace = tuple[DirectoryStore, RowsRef]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return make_workspace(tmp_path)


def run(store: DirectoryStore, rows: RowsRef, *overrides: str, parent: TrainOutcome | None = None) -> WarmupOutcome:
    inputs = WarmupInputs(rows=(rows,), parent=parent.checkpoint if parent else None)
    outcome = warmup.run(make_job(store, tiny_config(*overrides), inputs, run_key="warm"))
    assert outcome is not None
    return outcome


def spy_on_steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that the training step meets from now on: rows, sequences, tokens."""
    seen: list[tuple[int, ...]] = []
    original = TrainStep.__call__

    def spying(self: TrainStep, batch: Batch, step: int) -> dict[str, torch.Tensor]:
        seen.append((len(batch.position), *batch.texts.ids.shape))
        return original(self, batch, step)

    monkeypatch.setattr(TrainStep, "__call__", spying)
    return seen


def test_the_shape_of_all_batches_is_tried_and_timed(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    seen = spy_on_steps(monkeypatch)
    outcome = run(*workspace, "warmup.steps=3")
    [timing] = outcome.shapes
    assert seen == [(16, timing.sequences, 32)] * 3
    assert timing.tokens == 32
    assert 0 < timing.step_seconds <= timing.first_step_seconds
    assert outcome.device == "cpu"
    assert outcome.validation_seconds > 0
    assert outcome.checkpoint_seconds > 0
    assert outcome.peak_memory_gib > 0


def test_training_meets_only_the_shape_that_warmup_met(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    store, rows = workspace
    seen = spy_on_steps(monkeypatch)
    run(store, rows)
    tried = set(seen)
    seen.clear()
    train_model(store, tiny_config(), rows)
    assert set(seen) == tried


def test_warmup_leaves_the_workspace_unchanged(workspace: Workspace):
    store, rows = workspace
    before = store.list("")
    run(store, rows)
    assert store.list("") == before


def test_warmup_does_not_change_the_training(workspace: Workspace, tmp_path: Path):
    store, rows = workspace
    run(store, rows)
    warm = train_model(store, tiny_config(), rows)
    cold_store, cold_rows = make_workspace(tmp_path / "cold")
    assert warm.checkpoint == train_model(cold_store, tiny_config(), cold_rows).checkpoint


def test_warmup_starts_from_the_lineages_checkpoint(workspace: Workspace, capsys: pytest.CaptureFixture[str]):
    store, rows = workspace
    parent = train_model(store, tiny_config(), rows)
    capsys.readouterr()
    run(store, rows, parent=parent)
    assert f"at step {parent.last_step}" in capsys.readouterr().out


def test_fewer_rows_than_a_batch_are_padded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen = spy_on_steps(monkeypatch)
    run(*make_workspace(tmp_path, rows=5))
    assert {rows for rows, *_ in seen} == {16}


def test_warmup_reads_no_more_rows_than_the_shape_needs(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    made: list[int] = []
    original = warmup.make_pairs

    def counting(rows: Iterable[pa.Table], parts: ModelParts, config: Config) -> Pairs:
        pairs = original(rows, parts, config)
        made.append(len(pairs))
        return pairs

    monkeypatch.setattr(warmup, "make_pairs", counting)
    monkeypatch.setattr(warmup, "SAMPLED_ROWS", 20)
    run(*workspace)
    assert made == [20]


def test_warmup_needs_no_holdout_rows(workspace: Workspace):
    assert run(*workspace, "evaluate.holdout_share=1e-9").validation_seconds >= 0


def test_a_parent_of_another_shape_is_refused(workspace: Workspace):
    store, rows = workspace
    parent = train_model(store, tiny_config(), rows)
    with pytest.raises(ConfigError, match="layers"):
        run(store, rows, "model.scratch.layers=2", parent=parent)
