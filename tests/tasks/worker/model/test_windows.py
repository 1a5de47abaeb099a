"""Layers with a local window: packed texts, and unpadded texts, get what the library gives each text alone."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import AutoConfig, AutoModel

from configs.schema.model import Prompts
from tasks.worker.devices.encoder_layers import MATMUL, use_attention
from tasks.worker.model.embedding_model import EmbeddingModel, ModelShape, local_reach
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.packing import UnpaddedTexts
from tasks.worker.model.tokens import TokenLists
from tests.support.models.layouts import LAYOUTS, WIDTH, write_layout
from tests.support.models.texts import packed

REACH = {"modernbert-embed-base": 4, "embeddinggemma-300m": 4, "Qwen3-Embedding-0.6B": 5}
LENGTHS = (40, 3, 9, 22, 1, 5, 14, 30)  # several in a row of 48, some within a window, some of many windows


def make(name: str, folder: Path) -> EmbeddingModel:
    """The model of a layout, in evaluation, whose every window is smaller than most texts."""
    write_layout(name, folder)
    if name.startswith("Qwen3"):  # one of its layers sees 6 tokens, itself included, and none after it
        path = folder / "config.json"
        local = {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}
        path.write_text(json.dumps(json.loads(path.read_text()) | local))
    config = AutoConfig.from_pretrained(folder)
    pooling = "last" if LAYOUTS[name].pooling == "lasttoken" else "mean"
    shape = ModelShape(pooling=pooling, prompts=Prompts(), width=WIDTH, interaction=None, classifier=None)
    model = EmbeddingModel(config, shape)
    weights = AutoModel.from_pretrained(folder, dtype=torch.float32).state_dict()
    model.encoder.load_state_dict(weights)
    return model.eval()


def texts_of(model: EmbeddingModel) -> list[list[int]]:
    random = np.random.default_rng(5)
    return [random.integers(5, model.encoder.config.vocab_size - 8, length).tolist() for length in LENGTHS]


def alone(model: EmbeddingModel, texts: list[list[int]]) -> torch.Tensor:
    """Unit vectors by the library's own masks, one text at a time."""
    found = []
    for text in texts:
        hidden = model.encoder(input_ids=torch.tensor([text])).last_hidden_state[0]
        found.append(hidden[-1] if model.shape.pooling == "last" else hidden.mean(dim=0))
    return F.normalize(torch.stack(found), dim=1)


def gradients(model: EmbeddingModel, vectors: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    (vectors * torch.linspace(-1, 1, vectors.numel()).view_as(vectors)).sum().backward()
    return torch.cat([weight.grad.flatten() for weight in model.encoder.parameters() if weight.grad is not None])


@pytest.mark.parametrize("name", REACH)
@pytest.mark.parametrize("attention", ["sdpa", "matmul"])
def test_packed_texts_have_the_vectors_and_gradients_of_each_alone(tmp_path: Path, name: str, attention: str):
    model = make(name, tmp_path / name)
    assert local_reach(model.encoder.config) == REACH[name]
    texts = texts_of(model)
    expected = alone(model, texts)
    wanted = gradients(model, expected)
    ours = copy.deepcopy(model)
    if attention == "matmul":
        use_attention(ours, MATMUL)
    vectors = ours(packed(texts, 48))
    assert (vectors * expected).sum(dim=1).min() > 0.99999
    assert F.cosine_similarity(gradients(ours, vectors), wanted, dim=0) > 0.99999


@pytest.mark.parametrize("name", REACH)
def test_unpadded_texts_have_the_vectors_of_each_alone(tmp_path: Path, name: str):
    model = make(name, tmp_path / name)
    texts = texts_of(model)
    ids = np.concatenate([np.array(text, dtype=np.int32) for text in texts])
    lengths = np.array(LENGTHS)
    tokens = TokenLists(ids, np.concatenate([[0], np.cumsum(lengths)]), model.pad)
    order = np.argsort(-lengths, kind="stable")
    none = FeatureArrays(np.zeros((len(texts), 0), np.float32), np.zeros((len(texts), 0), np.int64))
    with torch.no_grad():
        expected = alone(model, texts)[torch.from_numpy(order)]
        use_attention(model, MATMUL)
        vectors = model(UnpaddedTexts.of(tokens, order, lengths[order], none))
    assert (vectors * expected).sum(dim=1).min() > 0.99999
