from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.worker.accelerators import open_accelerator
from tasks.worker.model.embed import EmbedSettings, embed
from tasks.worker.model.embedding_model import Texts
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.tokens import TokenLists, tokenize
from tasks.worker.process.job import Rank
from tasks.worker.training.build import build_parts
from tasks.worker.training.checkpoint import ModelParts
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import all_rows, make_workspace, tiny_config

TEXTS = [f"a {'red' if number % 2 else 'blue'} lamp" + " and a chair" * (number % 4) for number in range(21)]
SETTINGS = EmbedSettings(4, [8, 16], "fp32")
ALONE = Rank(0, 1, 0)


def make_parts(folder: Path) -> ModelParts:
    store, rows = make_workspace(folder, rows=40)
    return build_parts(tiny_config(), [all_rows(store, [rows], tiny_config())])


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> ModelParts:
    return make_parts(tmp_path_factory.mktemp("embed"))


def no_features(rows: int) -> FeatureArrays:
    return FeatureArrays(np.zeros((rows, 0), np.float32), np.zeros((rows, 0), np.int64))


def inputs(parts: ModelParts, texts: list[str]) -> tuple[TokenLists, FeatureArrays]:
    return tokenize(parts.tokenizer, texts, 16, parts.model.pad), no_features(len(texts))


def embed_alone(parts: ModelParts, texts: list[str], settings: EmbedSettings = SETTINGS) -> np.ndarray:
    with open_accelerator("cpu", ALONE) as accelerator:
        return embed(parts.model, accelerator, *inputs(parts, texts), settings)


def test_vectors_are_in_the_order_of_the_texts(parts: ModelParts):
    tokens, _ = inputs(parts, TEXTS)
    vectors = embed_alone(parts, TEXTS)
    assert vectors.shape == (21, 32)
    assert vectors.dtype == np.float32
    nothing = no_features(1)
    for row in range(len(TEXTS)):
        ids = torch.from_numpy(tokens.padded(np.array([row]), 16))
        with torch.inference_mode():
            alone = parts.model(Texts(ids, torch.from_numpy(nothing.numeric), torch.from_numpy(nothing.categorical)))
        assert vectors[row] == pytest.approx(alone[0].numpy(), abs=1e-5)


@pytest.mark.parametrize(
    "settings",
    [EmbedSettings(1, [16], "fp32"), EmbedSettings(5, [16], "fp32"), EmbedSettings(64, [4, 8, 12, 16], "fp32")],
)
def test_vectors_do_not_depend_on_the_grouping(parts: ModelParts, settings: EmbedSettings):
    assert embed_alone(parts, TEXTS, settings) == pytest.approx(embed_alone(parts, TEXTS), abs=1e-5)


def test_a_text_longer_than_the_last_rung_is_cut(parts: ModelParts):
    tokens = tokenize(parts.tokenizer, TEXTS, 16, parts.model.pad)
    assert tokens.lengths.max() > 8
    assert embed_alone(parts, TEXTS, EmbedSettings(4, [8], "fp32")).shape == (21, 32)


def test_no_texts_give_no_vectors(parts: ModelParts):
    assert embed_alone(parts, []).shape == (0, 32)


def test_progress_counts_texts_up_to_all(parts: ModelParts):
    seen: list[tuple[int, int]] = []
    with open_accelerator("cpu", ALONE) as accelerator:
        embed(parts.model, accelerator, *inputs(parts, TEXTS), SETTINGS, progress=lambda *step: seen.append(step))
    assert seen == sorted(seen)
    assert seen[-1] == (21, 21)


def test_embedding_keeps_the_model_in_training_mode(parts: ModelParts):
    parts.model.train()
    embed_alone(parts, TEXTS)
    assert parts.model.training


def embed_as_rank(rank: Rank, folder: Path, shared: bool) -> np.ndarray:
    parts = make_parts(folder / str(rank.index))
    with open_accelerator("cpu", rank) as accelerator:
        return embed(parts.model, accelerator, *inputs(parts, TEXTS), SETTINGS, shared=shared)


@pytest.mark.parametrize("shared", [True, False])
def test_every_worker_gets_all_vectors(parts: ModelParts, tmp_path: Path, shared: bool):
    first, second = run_ranks(2, embed_as_rank, tmp_path, shared)
    assert np.array_equal(first, second)
    assert first == pytest.approx(embed_alone(parts, TEXTS), abs=1e-6)
