import copy
from pathlib import Path

import numpy as np
import pytest
import torch

from tasks.worker.devices.accelerators import open_accelerator, open_device
from tasks.worker.model.embed import EmbedSettings, compile_embedding, embed
from tasks.worker.model.embedding_model import EmbeddingModel, Texts
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.tokens import TokenLists, tokenize
from tasks.worker.process.job import Rank
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.start import build_parts
from tests.support.models.beside import Beside
from tests.support.models.texts import packed
from tests.support.processes.ranks import run_ranks
from tests.support.workspace.jobs import CLASSIFIER, all_rows, make_workspace, tiny_config

TEXTS = [f"a {'red' if number % 2 else 'blue'} lamp" + " and a chair" * (number % 4) for number in range(21)]
SETTINGS = EmbedSettings(2, 32, "fp32")
ALONE = Rank(0, 1, 0)


def make_parts(folder: Path) -> ModelParts:
    store, rows = make_workspace(folder, rows=40)
    config = tiny_config(CLASSIFIER)
    return build_parts(config, [all_rows(store, [rows], config)])


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


def vectors_one_by_one(parts: ModelParts, longest: int = 16) -> np.ndarray:
    tokens, _ = inputs(parts, TEXTS)
    lists = [ids[:longest].tolist() for ids in np.split(tokens.ids, tokens.offsets[1:-1])]
    with torch.inference_mode():
        return torch.cat([parts.model(packed([ids], len(ids))) for ids in lists]).numpy()


def test_vectors_are_in_the_order_of_the_texts(parts: ModelParts):
    vectors = embed_alone(parts, TEXTS)
    assert vectors.shape == (21, 32)
    assert vectors.dtype == np.float32
    assert vectors == pytest.approx(vectors_one_by_one(parts), abs=1e-5)


@pytest.mark.parametrize("settings", [EmbedSettings(1, 16, "fp32"), EmbedSettings(64, 48, "fp32")])
def test_vectors_do_not_depend_on_the_packing(parts: ModelParts, settings: EmbedSettings):
    assert embed_alone(parts, TEXTS, settings) == pytest.approx(embed_alone(parts, TEXTS), abs=1e-5)


def test_a_text_longer_than_a_sequence_is_cut(parts: ModelParts):
    found = embed_alone(parts, TEXTS, EmbedSettings(4, 8, "fp32"))
    assert found == pytest.approx(vectors_one_by_one(parts, 8), abs=1e-5)
    assert found != pytest.approx(embed_alone(parts, TEXTS), abs=1e-3)


def spied_shapes(monkeypatch: pytest.MonkeyPatch) -> set[tuple[tuple[int, ...], ...]]:
    """The shapes of all inputs of the model from now on."""
    seen, forward = set(), EmbeddingModel.forward

    def spy(self: EmbeddingModel, texts: Texts) -> torch.Tensor:
        seen.add(tuple(tuple(each.shape) for each in vars(texts).values()))
        return forward(self, texts)

    monkeypatch.setattr(EmbeddingModel, "forward", spy)
    return seen


def test_all_batches_have_the_shape_that_is_compiled(parts: ModelParts, monkeypatch: pytest.MonkeyPatch):
    seen = spied_shapes(monkeypatch)
    with open_accelerator("cpu", ALONE) as accelerator:
        compile_embedding(parts.model, accelerator, SETTINGS)
        for count in (1, 5, 21):
            embed(parts.model, accelerator, *inputs(parts, TEXTS[:count]), SETTINGS)
    assert len(seen) == 1


def test_a_processor_embeds_with_little_padding(parts: ModelParts, monkeypatch: pytest.MonkeyPatch):
    computed, own = [], copy.deepcopy(parts)
    forward = type(own.model.encoder).forward
    monkeypatch.setattr(
        type(own.model.encoder),
        "forward",
        lambda self, input_ids, **rest: computed.append(input_ids.numel()) or forward(self, input_ids, **rest),
    )
    with open_accelerator("cpu", ALONE) as accelerator:
        accelerator.to_device(own.model)
        vectors = embed(own.model, accelerator, *inputs(parts, TEXTS), SETTINGS)
    assert sum(computed) - inputs(parts, TEXTS)[0].lengths.sum() < 16 * len(computed)
    assert max(computed) <= SETTINGS.sequences * SETTINGS.tokens
    assert vectors == pytest.approx(vectors_one_by_one(parts), abs=1e-5)


def test_texts_without_tokens_have_vectors_of_zeros(parts: ModelParts):
    offsets = np.array([0] * 20 + [4] + [4] * 20 + [6])  # many more than a batch has room for
    tokens = TokenLists(np.array([2, 30, 31, 3, 2, 3], dtype=np.int32), offsets, 0)
    with open_accelerator("cpu", ALONE) as accelerator:
        vectors = embed(parts.model, accelerator, tokens, no_features(len(tokens)), SETTINGS)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(np.sign(np.diff(offsets)), abs=1e-5)


def test_only_the_texts_asked_for_are_embedded(parts: ModelParts):
    asked = np.array([2, 3, 11])
    with open_accelerator("cpu", ALONE) as accelerator:
        found = embed(parts.model, accelerator, *inputs(parts, TEXTS), SETTINGS, only=asked)
    assert found[asked] == pytest.approx(embed_alone(parts, TEXTS)[asked], abs=1e-5)
    assert np.flatnonzero(found.any(axis=1)).tolist() == asked.tolist()


def test_no_texts_give_no_vectors(parts: ModelParts):
    assert embed_alone(parts, []).shape == (0, 32)


def test_progress_counts_texts_up_to_all(parts: ModelParts):
    seen: list[tuple[int, int]] = []
    with open_accelerator("cpu", ALONE) as accelerator:
        embed(parts.model, accelerator, *inputs(parts, TEXTS), SETTINGS, progress=lambda *step: seen.append(step))
    assert seen == sorted(seen)
    assert len(seen) > 1
    assert seen[-1] == (21, 21)


def test_embedding_keeps_the_model_in_training_mode(parts: ModelParts):
    parts.model.train()
    embed_alone(parts, TEXTS)
    assert parts.model.training


def test_a_device_beside_the_host_gives_the_same_bits_one_batch_behind(parts: ModelParts):
    beside = Beside(ALONE)
    with open_device(beside):
        found = embed(parts.model, beside, *inputs(parts, TEXTS), SETTINGS)
    assert np.array_equal(found, embed_alone(parts, TEXTS))
    assert (beside.started, beside.most_started) == (0, 2)


def embed_as_rank(rank: Rank, folder: Path, shared: bool) -> tuple[np.ndarray, int]:
    """The vectors, and the number of batches that this worker has computed."""
    parts, batches = make_parts(folder / str(rank.index)), []
    parts.model.register_forward_hook(lambda *_: batches.append(1))
    with open_accelerator("cpu", rank) as accelerator:
        found = embed(parts.model, accelerator, *inputs(parts, TEXTS), SETTINGS, shared=shared)
    return found, len(batches)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.shows("shared evaluation")
def test_every_worker_gets_all_vectors_and_shared_work_is_halved(parts: ModelParts, tmp_path: Path, shared: bool):
    alone, whole = embed_as_rank(ALONE, tmp_path / "alone", shared)
    (first, own), (second, others) = run_ranks(2, embed_as_rank, tmp_path, shared)
    assert np.array_equal(first, second)
    assert np.array_equal(first, alone), "to the last bit"
    assert (own, others) == ((whole + 1) // 2, whole // 2) if shared else (whole, whole)
