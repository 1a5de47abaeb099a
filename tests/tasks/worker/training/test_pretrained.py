"""Folders of sentence-transformers: begun with, trained, released, and begun with again."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer

from configs.schema.config import Config
from tasks.contracts.jobs import ReleaseInputs
from tasks.data.pretrained import describe
from tasks.worker import release
from tasks.worker.devices.base import Precision
from tasks.worker.model.features import Side
from tasks.worker.training.checkpoint import ModelParts, load_parts
from tasks.worker.training.start import build_parts
from tests.support.fakes.own_process import encode_here
from tests.support.models.pretrained import KINDS, write_pretrained
from tests.support.models.texts import embed_texts
from tests.support.workspace.jobs import (
    FEATURES,
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

TEXTS = ["want a red lamp please", "Red CHAIR", "", "black kettle model 7", "green scarf " * 30]
SIDES: tuple[Side, ...] = ("query", "item")


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Pretrained folders by kind, each made once."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = write_pretrained(KINDS[kind], tmp_path_factory.mktemp("pretrained") / kind)
        return made[kind]

    return get


def config_for(folder: Path, *overrides: str) -> Config:
    return tiny_config(f"model.pretrained={folder}", "model.scratch=null", *overrides)


def new_parts(config: Config, folder: Path) -> ModelParts:
    store, ref = make_workspace(folder, rows=20)
    return build_parts(config, [all_rows(store, [ref], config)])


def ours(parts: ModelParts, config: Config, side: Side, precision: Precision = "fp32") -> np.ndarray:
    return embed_texts(parts, config, TEXTS, side, precision)


def theirs(folder: Path, config: Config, side: Side) -> np.ndarray:
    model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = config.infer.max_tokens
    encode = model.encode_query if side == "query" else model.encode_document
    # Its version 6 takes the empty prompt `document`, which every folder gets, before `passage`.
    name = "passage" if side == "item" and "passage" in model.prompts else None
    return np.asarray(encode(TEXTS, prompt_name=name, normalize_embeddings=True, show_progress_bar=False))


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_gives_the_vectors_of_sentence_transformers(
    folder_of: Callable[[str], Path], tmp_path: Path, kind: str
):
    folder = folder_of(kind)
    config = config_for(folder)
    parts = new_parts(config, tmp_path)
    for side in SIDES:
        assert (ours(parts, config, side) * theirs(folder, config, side)).sum(axis=1).min() > 0.9999


@pytest.mark.parametrize("kind", ["xlm-roberta", "mpnet", "distilbert", "last"])
def test_every_kind_of_encoder_computes_in_bf16(folder_of: Callable[[str], Path], tmp_path: Path, kind: str):
    config = config_for(folder_of(kind))
    parts = new_parts(config, tmp_path)
    assert (ours(parts, config, "item") * ours(parts, config, "item", "bf16")).sum(axis=1).min() > 0.98


@pytest.mark.parametrize("kind", ["cls", "tanh", "xlm-roberta"])
def test_a_folder_is_trained_released_and_begun_with_again(
    folder_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    encode_here(monkeypatch)
    config = config_for(folder_of(kind), "train.epochs=2", "heads.contrastive.matryoshka=[8, 12]")
    store, rows = make_workspace(tmp_path, rows=40, distinct=30)
    model = model_of(train_model(store, config, rows))
    trained = load_parts(store, model.checkpoint)
    inputs = ReleaseInputs(
        model=model,
        vectors=infer_vectors(store, config, rows, model).prefix,
        catalogue=make_catalogue(store, config, rows),
        rows=with_held(store, config, rows),
    )
    folder = store.local(release.release(make_job(store, config, inputs)).model)
    card = (folder / "README.md").read_text()
    assert "first 8, 12 numbers" in card
    assert all(f"`{prompt}`" in card for prompt in KINDS[kind].prompts.values())
    before, after = describe(folder_of(kind)), describe(folder)
    assert (after.pooling, after.dense, after.prompts) == (before.pooling, before.dense, before.prompts)
    again = build_parts(config_for(folder), [all_rows(store, [rows], config)])
    first = new_parts(config, tmp_path / "first")
    for side in SIDES:
        released = ours(trained, config, side)
        assert (released * theirs(folder, config, side)).sum(axis=1).min() > 0.9999
        assert (released * ours(again, config, side)).sum(axis=1).min() > 0.9999
        assert (released * ours(first, config, side)).sum(axis=1).max() < 0.9999, "it was trained"


def test_the_dense_layers_of_a_folder_are_trained(folder_of: Callable[[str], Path], tmp_path: Path):
    config = config_for(folder_of("tanh"))
    store, rows = make_workspace(tmp_path, rows=40)
    trained = load_parts(store, model_of(train_model(store, config, rows)).checkpoint).model.dense
    first = new_parts(config, tmp_path / "first").model.dense
    assert not torch.allclose(trained.state_dict()["0.weight"], first.state_dict()["0.weight"])


def test_features_cross_with_the_vector_after_the_dense_layers(
    folder_of: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    encode_here(monkeypatch)
    config = config_for(folder_of("tanh"), *FEATURES)
    store, rows = make_workspace(tmp_path, rows=40, distinct=30)
    model = model_of(train_model(store, config, rows))
    inputs = ReleaseInputs(
        model=model,
        vectors=infer_vectors(store, config, rows, model).prefix,
        catalogue=make_catalogue(store, config, rows),
        rows=with_held(store, config, rows),
    )
    assert release.release(make_job(store, config, inputs)).min_cosine > 0.9999


def test_a_lineage_goes_on_without_its_folder_and_keeps_its_prompts(folder_of: Callable[[str], Path], tmp_path: Path):
    store, rows = make_workspace(tmp_path, rows=40)
    first = train_model(store, config_for(folder_of("cls")), rows)
    second = train_model(store, config_for(tmp_path / "gone"), rows, parent=first.checkpoint, run_key="second")
    shape = load_parts(store, second.checkpoint).model.shape
    assert (shape.pooling, shape.prompts.query) == ("cls", KINDS["cls"].prompts["query"])
