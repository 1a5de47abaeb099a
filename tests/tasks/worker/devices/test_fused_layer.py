from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModel, BertConfig, DistilBertConfig, ElectraConfig, RobertaConfig

from tasks.worker.devices.accelerators import open_accelerator
from tasks.worker.devices.encoder_layers import MATMUL, FusedLayer, fused_layer, unpadded_layer, use_attention
from tasks.worker.process.job import Rank

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported(),
    reason="this processor, or this torch, has no products in bf16 by oneDNN",
)
SEQUENCES, TOKENS, WIDTH, HEADS = 3, 20, 64, 4
BERT: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "intermediate_size": 256,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def encoder(config: Any) -> Any:
    """An encoder with plain attention, none of whose weights, biases included, is zero or one."""
    torch.manual_seed(0)
    made = AutoModel.from_config(config)
    use_attention(made, MATMUL)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return made


def given(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Hidden states, an additive mask of several texts in each sequence, and a gradient."""
    torch.manual_seed(1)
    hidden, gradient = torch.randn(2, SEQUENCES, TOKENS, WIDTH).to(dtype)
    segments = torch.randint(0, 3, (SEQUENCES, 1, TOKENS)).sort().values
    mask = torch.zeros(SEQUENCES, 1, TOKENS, TOKENS, dtype=dtype)
    mask.masked_fill_(segments[..., None] != segments[..., None, :], -1e4)
    return hidden, mask.expand(-1, HEADS, -1, -1).contiguous(), gradient


def both_passes(layer: nn.Module, how: Any, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    """What the layer returns, and every gradient."""
    hidden, mask, gradient = given(dtype)
    layer.zero_grad()
    out = how(layer, hidden.requires_grad_(), mask)
    out.backward(gradient)
    gradients = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {"out": out.detach(), "hidden": hidden.grad} | gradients  # type: ignore[dict-item]


def plain(layer: nn.Module, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return type(layer).forward(layer, hidden, mask)


def test_a_fused_layer_gives_what_the_plain_one_gives_forward_and_backward():
    layer = encoder(BertConfig(**BERT)).encoder.layer[0]
    expected, found = both_passes(layer, plain), both_passes(layer, fused_layer)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=2e-5, msg=lambda m, n=name: f"{n}: {m}")


def test_in_bf16_a_fused_layer_is_as_near_to_fp32_as_the_plain_one():
    layer = encoder(BertConfig(**BERT)).encoder.layer[0]
    exact = both_passes(layer, plain)
    layer.bfloat16()
    rounded, found = (both_passes(layer, how, torch.bfloat16) for how in (plain, fused_layer))
    del exact["attention.self.key.bias"]  # zero: the softmax does not see it
    for name, value in exact.items():
        plain_error, error = ((each[name].float() - value).norm() / value.norm() for each in (rounded, found))
        assert error < 1.25 * plain_error + 1e-3, f"{name}: {error:.2e}, not {plain_error:.2e}"


@torch.no_grad()
def test_unpadded_texts_are_as_near_to_fp32_as_in_the_plain_layer():
    layer = encoder(BertConfig(**BERT)).encoder.layer[0].eval()
    hidden = torch.randn(1, 27, WIDTH)
    texts = (slice(0, 10), slice(10, 20), slice(20, 27))  # two of 10 tokens, and one of 7
    groups = torch.tensor([[[[2, 10], [1, 7]]]])
    mask = torch.full((1, HEADS, 27, 27), -1e4)
    for text in texts:
        mask[:, :, text, text] = 0.0
    exact = plain(layer, hidden, mask)
    torch.testing.assert_close(unpadded_layer(layer, hidden, groups), exact, rtol=1e-5, atol=2e-5)
    layer.bfloat16()
    hidden = hidden.bfloat16()
    rounded, found = plain(layer, hidden, mask.bfloat16()), unpadded_layer(layer, hidden, groups)
    assert (found.float() - exact).norm() < 1.25 * (rounded.float() - exact).norm()


@pytest.mark.parametrize(
    ("config", "precision", "layers"),
    [
        (BertConfig(**BERT), "bf16", 2),
        (RobertaConfig(**BERT), "bf16", 2),
        (ElectraConfig(**BERT), "bf16", 2),
        (BertConfig(**BERT), "fp32", 0),
        (BertConfig(**dict(BERT, hidden_dropout_prob=0.1)), "bf16", 0),
        (BertConfig(**dict(BERT, attention_probs_dropout_prob=0.1)), "bf16", 0),
        (BertConfig(**dict(BERT, hidden_act="relu")), "bf16", 0),
        (DistilBertConfig(vocab_size=50, dim=WIDTH, n_layers=2, n_heads=HEADS, hidden_dim=256), "bf16", 0),
    ],
)
def test_a_processor_fuses_layers_that_are_berts_compute_in_bf16_and_drop_nothing(
    config: Any, precision: str, layers: int, monkeypatch: pytest.MonkeyPatch
):
    calls = []
    monkeypatch.setattr(FusedLayer, "apply", lambda rows, *rest: calls.append(1) or rows)
    model = AutoModel.from_config(config).train()
    if precision == "bf16":
        model.bfloat16()
    with open_accelerator("cpu", Rank(0, 1, 0)) as accelerator:
        accelerator.to_device(model)
        mask = torch.zeros(1, HEADS, 8, 8, dtype=model.dtype)
        model(input_ids=torch.ones(1, 8, dtype=torch.int64), attention_mask=mask)
    assert len(calls) == layers
