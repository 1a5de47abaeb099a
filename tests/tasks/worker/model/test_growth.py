import shutil
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
import torch

from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import RowsRef
from tasks.worker.model.features import FeatureArrays, encode_features
from tasks.worker.training.checkpoint import ModelParts, load_parts
from tasks.worker.training.start import grow_features
from tests.support.workspace.jobs import (
    FEATURES,
    all_rows,
    change_rows,
    make_workspace,
    tensors_of,
    tiny_config,
    train_model,
)

TABLE = "interaction.tables.0.weight"
Trained = tuple[DirectoryStore, RowsRef, RowsRef, TrainOutcome]


def with_many_locales(rows: pa.Table) -> pa.Table:
    """The rows of February: seven more locales, more than there were spare rows for."""
    locales = pa.array([f"l{number % 7}" if number % 2 else "en" for number in range(len(rows))])
    ids = pa.array([name.replace("2026-01", "2026-02") for name in rows["row_id"].to_pylist()])
    rows = rows.set_column(rows.schema.get_field_index("locale"), "locale", locales)
    return rows.set_column(rows.schema.get_field_index("row_id"), "row_id", ids)


@pytest.fixture(scope="module")
def once_trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("growth")
    store, january = make_workspace(folder)
    february = change_rows(store, january, "2026-02", with_many_locales, folder)
    return store, january, february, train_model(store, tiny_config(*FEATURES), january)


@pytest.fixture
def trained(once_trained: Trained, tmp_path: Path) -> Trained:
    store, january, february, outcome = once_trained
    shutil.copytree(store.root, tmp_path / "workspace")
    return DirectoryStore(tmp_path / "workspace"), january, february, outcome


def first_categories(parts: ModelParts, rows: pa.Table) -> torch.Tensor:
    """What the interaction sees of the first feature of each row."""
    found: FeatureArrays = encode_features(parts.features, rows, "item")
    assert parts.model.interaction is not None
    with torch.no_grad():
        return parts.model.interaction.tables[0](torch.from_numpy(found.categorical[:, 0]))


def test_growing_changes_no_vector(trained: Trained):
    store, january, february, outcome = trained
    config = tiny_config(*FEATURES)
    rows = all_rows(store, [january, february], config)
    before = first_categories(load_parts(store, outcome.checkpoint), rows)
    loaded = load_parts(store, outcome.checkpoint)
    parts = replace(loaded, features=grow_features(loaded.model, loaded.features, [rows]))
    assert parts.features.categorical["locale"] == ("de", "en", *(f"l{number}" for number in range(7)))
    assert torch.equal(first_categories(parts, rows), before)
    assert parts.model.shape.interaction is not None
    assert parts.model.shape.interaction.categories == parts.features.categories == [16, 8]


def test_the_next_run_trains_the_new_categories(trained: Trained):
    store, _, february, outcome = trained
    after = train_model(store, tiny_config(*FEATURES), february, parent=outcome.checkpoint, run_key="next")
    old, new = (tensors_of(store, each.checkpoint)[TABLE] for each in (outcome, after))
    assert (len(old), len(new)) == (8, 16)
    unknown = new[1]
    assert not any(torch.allclose(row, unknown) for row in new[4:11]), "each new category has learnt"
    moments = tensors_of(store, after.checkpoint, "optimizer")[f"exp_avg_sq/{TABLE}"]
    assert moments.shape == new.shape
    assert moments[4:11].any(dim=1).all()
    assert not moments[11:].any()


def test_an_interrupted_run_with_new_categories_ends_with_the_same_weights(
    trained: Trained, monkeypatch: pytest.MonkeyPatch
):
    from tasks.worker.training.loop import LoopRecorder

    store, _, february, outcome = trained
    config = tiny_config(*FEATURES)
    whole = train_model(store, config, february, parent=outcome.checkpoint, run_key="whole")
    weights = tensors_of(store, whole.checkpoint)
    store.delete(whole.checkpoint.prefix)
    stopped_at = outcome.last_step + 5
    plain = LoopRecorder.stop_if_agreed

    def stop(self: LoopRecorder, step: int) -> None:
        if step == stopped_at:
            self.writer.wait()  # for the checkpoint of the step before
            raise KeyboardInterrupt
        plain(self, step)

    with monkeypatch.context() as patch:
        patch.setattr(LoopRecorder, "stop_if_agreed", stop)
        with pytest.raises(KeyboardInterrupt):
            train_model(store, config, february, parent=outcome.checkpoint, run_key="cut")
    again = train_model(store, config, february, parent=outcome.checkpoint, run_key="cut")
    assert again.resumed_at_step == outcome.last_step + 4
    found = tensors_of(store, again.checkpoint)
    assert all(torch.equal(found[name], weights[name]) for name in weights)
