from typing import Literal

import pytest
import torch
from transformers import BertConfig

from configs.schema.config import Config
from tasks.worker.model.embedding_model import EmbeddingModel, Texts, shape_of
from tasks.worker.model.features import FeatureTable, Scale
from tests.support.workspace.jobs import CLASSIFIER, tiny_config

TABLE = FeatureTable(
    numeric={"price": Scale(mean=1.0, deviation=2.0)},
    categorical={"locale": ("de", "en"), "gift": ("false", "true")},
    query=("locale",),
)


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
    return EmbeddingModel(encoder, shape_of(config, 16, TABLE))


def texts(width: int = 6, rows: int = 4) -> Texts:
    """Four tokens a row; the rest of `width` is padding."""
    random = torch.Generator().manual_seed(1)
    ids = torch.zeros(rows, width, dtype=torch.long)
    ids[:, :4] = torch.randint(5, 50, (rows, 4), generator=random)
    return Texts(ids, torch.randn(rows, 1, generator=random), torch.arange(2 * rows).view(rows, 2) % 3)


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
def test_padding_does_not_change_a_vector(overrides: tuple[str, ...]):
    model = make(*overrides)
    torch.testing.assert_close(model(texts(4)), model(texts(16)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("overrides", VARIANTS, ids=" ".join)
def test_a_row_of_only_padding_is_finite_forward_and_backward(overrides: tuple[str, ...]):
    model = make(*overrides)
    batch = texts()
    batch.ids[1:] = 0
    model(batch).sum().backward()
    assert torch.isfinite(model(batch)).all()
    assert all(torch.isfinite(one.grad).all() for one in model.parameters() if one.grad is not None)


def test_mean_pooling_is_the_mean_over_the_real_tokens():
    model = make()
    hidden = model.encoder(texts(4).ids).last_hidden_state
    torch.testing.assert_close(model(texts(9)), torch.nn.functional.normalize(hidden.mean(dim=1)), rtol=1e-5, atol=1e-6)


def test_cls_pooling_is_the_first_token():
    model = make("model.pooling=cls")
    hidden = model.encoder(texts(4).ids).last_hidden_state
    torch.testing.assert_close(model(texts(9)), torch.nn.functional.normalize(hidden[:, 0]), rtol=1e-5, atol=1e-6)


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
        return shape_of(config, 16, TABLE).model_dump()

    plain, changed = shape(tiny_config()), shape(tiny_config(override))
    assert [name for name in plain if plain[name] != changed[name]] == [field]
