"""Sums as products, on the host: they give what torch's own layers give. `test_xla.py` trains with them."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModel, BertConfig

from tasks.worker.devices.sums_as_products import use_products_for_sums

BERT: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


@pytest.fixture
def sent() -> list[torch.Tensor]:
    """The matrices of ones that were made."""
    return []


@pytest.fixture
def both(sent: list[torch.Tensor]) -> tuple[nn.Module, nn.Module]:
    """An encoder none of whose weights is zero or one, as it is and with products for sums."""

    def upload(tensor: torch.Tensor) -> torch.Tensor:
        sent.append(tensor)
        return tensor

    torch.manual_seed(0)
    plain = AutoModel.from_config(BertConfig(**BERT))
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    other = copy.deepcopy(plain)
    use_products_for_sums(other, upload)
    return plain, other


def test_they_give_what_the_plain_layers_give_forward_and_backward(
    both: tuple[nn.Module, nn.Module], sent: list[torch.Tensor]
):
    ids, weights = torch.randint(0, 50, (3, 20)), torch.randn(3, 20, 64)
    expected, found = (model(input_ids=ids).last_hidden_state for model in both)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=2e-5)
    for out in (expected, found):
        (out * weights).sum().backward()
    assert sorted(tuple(each.shape) for each in sent) == [(1, 8), (8, 60), (64, 8)]  # each size is sent once
    for (name, plain), (_, other) in zip(*(model.named_parameters() for model in both), strict=True):
        if plain.grad is not None:  # not the pooler
            assert other.grad is not None, name
            torch.testing.assert_close(other.grad, plain.grad, rtol=1e-4, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_other_types_than_fp32_compute_as_before(both: tuple[nn.Module, nn.Module], sent: list[torch.Tensor]):
    ids = torch.randint(0, 50, (3, 20))
    expected, found = (model.bfloat16()(input_ids=ids).last_hidden_state for model in both)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not sent


def test_the_encoders_layers_alone_are_replaced(both: tuple[nn.Module, nn.Module]):
    outside = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), both[0])
    use_products_for_sums(outside, lambda tensor: tensor)
    replaced = {name for name, part in outside.named_modules() if "forward" in vars(part)}
    assert {"2.encoder.layer.0.attention.self.query", "2.embeddings.LayerNorm"} <= replaced
    assert not {"0", "1"} & replaced
