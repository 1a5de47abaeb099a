from typing import Any, get_args

import numpy as np
import pytest
import torch
from transformers import BertConfig, DistilBertConfig, LlamaConfig, RobertaConfig

from configs.schema.model import Pooling
from tasks.data.pretrained import TextShape
from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.model.embedding_model import EmbeddingModel, shape_of
from tasks.worker.model.features import FeatureArrays, FeatureTable
from tasks.worker.model.packing import UnpaddedTexts, round_length_up, split_batches
from tasks.worker.model.tokens import TokenLists
from tasks.worker.process.job import Rank
from tests.support.models.texts import packed
from tests.support.workspace.jobs import tiny_config

LENGTHS = (9, 3, 9, 1, 5, 3)
ROWS = np.array([0, 2, 4, 1, 5, 3])  # the longest first
BERT: dict[str, Any] = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
CAUSAL = LlamaConfig(vocab_size=50, **dict(BERT, num_attention_heads=4), num_key_value_heads=2, pad_token_id=0)
NO_FEATURES = FeatureTable(numeric={}, categorical={}, query=(), rows={})
ENCODERS = (
    BertConfig(vocab_size=50, **BERT),
    RobertaConfig(vocab_size=50, max_position_embeddings=16, **BERT),
    DistilBertConfig(vocab_size=50, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
    CAUSAL,
)


def made(config: Any, pooling: Pooling) -> EmbeddingModel:
    torch.manual_seed(0)
    shape = shape_of(tiny_config(), config.hidden_size, NO_FEATURES, TextShape(pooling=pooling))
    return EmbeddingModel(config, shape).eval()


def some_tokens() -> TokenLists:
    ids = np.random.default_rng(1).integers(5, 50, sum(LENGTHS), dtype=np.int32)
    return TokenLists(ids, np.concatenate([[0], np.cumsum(LENGTHS)]), 0)


@pytest.mark.parametrize("pooling", get_args(Pooling))
@pytest.mark.parametrize("config", ENCODERS, ids=lambda config: config.model_type)
def test_unpadded_texts_have_the_vectors_of_packed_ones(config: Any, pooling: Pooling):
    model, tokens, none = made(config, pooling), some_tokens(), np.zeros((len(LENGTHS), 0))
    lists = [ids.tolist() for ids in np.split(tokens.ids, tokens.offsets[1:-1])]
    lengths = tokens.lengths[ROWS]
    line = UnpaddedTexts.of(tokens, ROWS, lengths, FeatureArrays(none.astype(np.float32), none.astype(np.int64)))
    assert line.groups[0, 0].tolist() == [[2, 9], [1, 5], [2, 3], [1, 1]]
    assert line.ids.shape == line.positions.shape == (1, 32)
    with torch.no_grad(), open_accelerator("cpu", Rank(0, 1, 0)) as accelerator:
        expected = model(packed(lists, 16))[ROWS]
        accelerator.to_device(model)
        torch.testing.assert_close(model(line), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("lengths", "batches"),
    [((9, 7, 5, 5, 5, 1), [(0, 2), (2, 6)]), ((20, 16, 1), [(0, 1), (1, 2), (2, 3)]), ((), [])],
)
def test_a_batch_has_room_for_so_many_tokens_and_one_text_at_least(lengths: Any, batches: list[tuple[int, int]]):
    assert [(part.start, part.stop) for part in split_batches(np.array(lengths, dtype=np.int64), 16)] == batches


def test_batches_have_few_lengths():
    lengths = {tokens: round_length_up(tokens) for tokens in range(1, 8193)}
    assert all(tokens <= length <= max(tokens * 9 / 8, tokens + 15) for tokens, length in lengths.items())
    assert lengths[8192] == 8192
    assert len(set(lengths.values())) == 56
