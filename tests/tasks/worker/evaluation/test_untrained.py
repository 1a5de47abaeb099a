"""The untrained model is the one that the lineage began with, in every part that gives a vector."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import save_file

from configs.schema.config import Config
from infra.store.base import sha256_of
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import ImportInputs, ReleaseInputs
from tasks.contracts.references import RowsRef
from tasks.judging.rivals import begun_with
from tasks.worker import release
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.evaluation.models import WeightsUnavailable, untrained_parts
from tasks.worker.laboratory import import_checkpoint
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.model.features import encode_features
from tasks.worker.model.tokens import tokenize
from tasks.worker.process.job import Rank
from tasks.worker.training.checkpoint import ModelParts, load_parts
from tasks.worker.training.start import build_parts
from tests.support.fakes.own_process import encode_here
from tests.support.models.pretrained import KINDS, write_pretrained
from tests.support.workspace.jobs import (
    CLASSIFIER,
    all_rows,
    infer_vectors,
    make_catalogue,
    make_job,
    make_workspace,
    model_of,
    tiny_config,
    train_model,
    with_held,
)

TEXTS = ["want a red lamp please", "Red CHAIR", "black kettle model 7"]


def begin(folder: Path | str, *overrides: str) -> Config:
    return tiny_config(f"model.pretrained={folder}", "model.scratch=null", CLASSIFIER, *overrides)


def vectors(parts: ModelParts, config: Config) -> np.ndarray:
    tokens = tokenize(parts.tokenizer, TEXTS, config.infer.max_tokens, parts.model.pad)
    features = encode_features(parts.features, pa.table({"text": TEXTS}), "item")
    with open_accelerator("cpu", Rank(0, 1, 0)) as accelerator:
        return embed(parts.model, accelerator, tokens, features, embed_settings(config, accelerator, "fp32"))


def assert_untrained_is_step_0(store: DirectoryStore, config: Config, rows: RowsRef) -> None:
    trained = load_parts(store, train_model(store, config, rows).checkpoint)
    began, found = build_parts(config, [all_rows(store, [rows], config)]), untrained_parts(config, trained)
    assert (vectors(trained, config) != vectors(began, config)).any(), "it was trained"
    assert (vectors(found, config) == vectors(began, config)).all()
    weights, same = began.model.state_dict(), found.model.state_dict()
    assert weights.keys() == same.keys()
    assert all(torch.equal(weights[name], same[name]) for name in weights), "heads too"


@pytest.mark.parametrize("kind", ["cls", "last", "tanh", "identity"])
def test_every_part_of_a_folder_is_that_of_step_0(tmp_path: Path, kind: str):
    store, rows = make_workspace(tmp_path, rows=40)
    assert_untrained_is_step_0(store, begin(write_pretrained(KINDS[kind], tmp_path / kind)), rows)


def test_an_own_release_with_a_narrower_embedding_is_that_of_step_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    encode_here(monkeypatch)
    store, rows = make_workspace(tmp_path, rows=40)
    config = begin(write_pretrained(KINDS["cls"], tmp_path / "cls"), "model.embedding_width=12")
    model = model_of(train_model(store, config, rows))
    inputs = ReleaseInputs(
        model=model,
        vectors=infer_vectors(store, config, rows, model).prefix,
        catalogue=make_catalogue(store, config, rows),
        rows=with_held(store, config, rows),
    )
    folder = store.local(release.release(make_job(store, config, inputs)).model)
    assert_untrained_is_step_0(store, begin(folder, "lineage=again"), rows)


def test_imported_weights_are_those_of_step_0(tmp_path: Path):
    store, rows = make_workspace(tmp_path, rows=40)
    config = begin(write_pretrained(KINDS["tanh"], tmp_path / "tanh"))
    theirs = build_parts(config.model_copy(update={"seed": 4}), [all_rows(store, [rows], config)])
    with torch.no_grad():
        for weight in theirs.model.parameters():
            weight.add_(0.1)
    file = tmp_path / "theirs.safetensors"
    save_file(theirs.model.state_dict(), file)
    inputs = ImportInputs(file=str(file), copy_key=None, sha256=sha256_of(file), rows=(rows,))
    imported = import_checkpoint.run(make_job(store, config, inputs)).checkpoint
    train_model(store, config, rows, parent=imported)
    measured = begun_with(store, config)
    assert measured == imported
    assert (vectors(load_parts(store, imported), config) == vectors(theirs, config)).all()


def test_a_folder_with_another_model_than_the_lineage_is_not_measured(tmp_path: Path):
    store, rows = make_workspace(tmp_path, rows=40)
    config = begin(write_pretrained(KINDS["tanh"], tmp_path / "tanh"))
    trained = load_parts(store, train_model(store, config, rows).checkpoint)
    other = begin(write_pretrained(KINDS["cls"], tmp_path / "cls"))
    with pytest.raises(WeightsUnavailable, match="can't be loaded"):
        untrained_parts(other, trained)
