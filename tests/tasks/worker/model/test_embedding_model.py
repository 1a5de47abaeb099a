from typing import Any, Literal

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    RobertaConfig,
    XLMRobertaConfig,
)

from configs.schema.config import Config
from configs.schema.model import Pooling
from tasks.data.pretrained import TextShape
from tasks.worker.model.embedding_model import EmbeddingModel, Texts, shape_of
from tasks.worker.model.features import FeatureArrays, FeatureTable, Scale
from tests.support.models.texts import packed
from tests.support.workspace.jobs import CLASSIFIER, tiny_config

TABLE = FeatureTable(
    numeric={"price": Scale(mean=1.0, deviation=2.0, low=-1e9, high=1e9)},
    categorical={"locale": ("de", "en"), "gift": ("false", "true")},
    query=("locale",),
    rows={"locale": 8, "gift": 8},
)
NO_FEATURES = FeatureTable(numeric={}, categorical={}, query=(), rows={})


def make(*overrides: str, dropout: float = 0.0) -> EmbeddingModel:
    config = tiny_config(*overrides)
    encoder = BertConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    torch.manual_seed(0)
    return EmbeddingModel(encoder, shape_of(config, 16, TABLE, TextShape(pooling=config.model.pooling or "mean")))


def ids_of(rows: int = 4) -> list[list[int]]:
    """Texts of 4, 5, 6 and so on tokens."""
    random = torch.Generator().manual_seed(1)
    return [torch.randint(5, 50, (4 + row,), generator=random).tolist() for row in range(rows)]


def features_of(rows: int) -> FeatureArrays:
    random = np.random.default_rng(1)
    return FeatureArrays(random.normal(size=(rows, 1)).astype(np.float32), np.arange(2 * rows).reshape(rows, 2) % 3)


def texts(rows: int = 4, tokens: int = 16, sequences: int | None = None) -> Texts:
    """Texts of different lengths; several of them share a sequence if `tokens` allow it."""
    return packed(ids_of(rows), tokens, features_of(rows), sequences)


VARIANTS = [
    (),
    ("model.pooling=cls",),
    ("model.embedding_width=8",),
    ("model.interaction.kind=explicit",),
    ("model.interaction.kind=implicit", "model.embedding_width=8"),
    ("model.interaction.kind=both",),
]


@pytest.mark.parametrize("overrides", VARIANTS, ids=" ".join)
def test_vectors_have_unit_length_and_the_configured_width(overrides: tuple[str, ...]):
    model = make(*overrides)
    vectors = model(texts())
    assert vectors.shape == (4, 8 if "model.embedding_width=8" in overrides else 16)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize("overrides", VARIANTS, ids=" ".join)
def test_a_vector_does_not_depend_on_the_texts_and_the_padding_next_to_it(overrides: tuple[str, ...]):
    model, features = make(*overrides), features_of(4)
    alone = [packed([ids], len(ids), features.at(np.array([row]))) for row, ids in enumerate(ids_of())]
    expected = torch.cat([model(each) for each in alone])
    for tokens, sequences in ((9, None), (16, None), (16, 7), (40, None)):
        found = model(texts(4, tokens, sequences))
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=lambda m, n=tokens: f"{n}: {m}")


@pytest.mark.parametrize("overrides", VARIANTS, ids=" ".join)
def test_a_text_without_tokens_and_a_sequence_of_padding_are_finite_forward_and_backward(overrides: tuple[str, ...]):
    model = make(*overrides)
    batch = packed([[], *ids_of(2), []], 16, features_of(4), sequences=3)
    assert (batch.segments < 0).all(dim=1).any()
    model(batch).sum().backward()
    assert torch.isfinite(model(batch)).all()
    assert all(torch.isfinite(one.grad).all() for one in model.parameters() if one.grad is not None)


def test_a_text_without_tokens_has_not_the_vector_of_another():
    vectors = make()(packed([ids_of(1)[0], []], 16))
    assert vectors[0].norm() > 0.99
    assert not vectors[1].any()


SMALL: dict[str, Any] = {"vocab_size": 50, "max_position_embeddings": 20}
BERT_LIKE: dict[str, Any] = SMALL | {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
ENCODERS = {
    "bert": BertConfig(**BERT_LIKE),
    "roberta": RobertaConfig(**BERT_LIKE, pad_token_id=1),
    "xlm-roberta": XLMRobertaConfig(**BERT_LIKE, pad_token_id=1),
    "distilbert": DistilBertConfig(**SMALL, dim=16, n_layers=2, n_heads=2, hidden_dim=32),
    "electra": ElectraConfig(**BERT_LIKE, embedding_size=16),
}


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_packed_texts_have_the_vectors_that_the_encoder_gives_each_alone(kind: str, pooling: Pooling):
    torch.manual_seed(0)
    model = EmbeddingModel(ENCODERS[kind], shape_of(tiny_config(), 16, NO_FEATURES, TextShape(pooling=pooling))).eval()
    vectors = model(packed(ids_of(), 64))  # more tokens than the encoder has positions
    for ids, vector in zip(ids_of(), vectors, strict=True):
        [hidden] = model.encoder(torch.tensor([ids])).last_hidden_state
        own = hidden.mean(dim=0) if pooling == "mean" else hidden[0]
        torch.testing.assert_close(vector, torch.nn.functional.normalize(own, dim=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("side", ["query", "pair"])
def test_the_classifier_uses_its_configured_input(side: Literal["query", "pair"]):
    model = make(CLASSIFIER, f"heads.classification.input={side}")
    query, item = model(texts()), model(texts()).flip(0)
    logits = model.classify(query, item)
    assert logits.shape == (4, 2)
    unmoved = torch.equal(logits, model.classify(query, item.roll(1, 0)))
    assert unmoved == (side == "query")


def test_bf16_gives_float32_unit_vectors_close_to_fp32():
    model = make("model.interaction.kind=both")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        vectors = model(texts())
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(4))
    assert (vectors * model(texts())).sum(dim=1).min() > 0.999


def test_dropout_is_off_only_in_evaluation():
    model = make(dropout=0.5)
    assert not torch.equal(model(texts()), model(texts()))
    model.eval()
    assert torch.equal(model(texts()), model(texts()))


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("model.pooling=cls", "pooling"),
        ("model.embedding_width=8", "width"),
        ("model.interaction.kind=both", "interaction"),
        (CLASSIFIER, "classifier"),
    ],
)
def test_the_shape_has_the_settings_that_weights_depend_on(override: str, field: str):
    def shape(config: Config) -> dict[str, object]:
        return shape_of(config, 16, TABLE, TextShape(pooling=config.model.pooling or "mean")).model_dump()

    plain, changed = shape(tiny_config()), shape(tiny_config(override))
    assert [name for name in plain if plain[name] != changed[name]] == [field]
