"""A whole BERT layer in bf16 as one operation with a backward pass of its own, for processors.

On a processor a step of a small encoder waits for memory as much as it multiplies. Here query, key and value are one
product in each direction, residuals and biases are where a product adds its result, and what is no longer needed is
overwritten. The decision page on fused layers has what each of these gives.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from transformers import PreTrainedModel

BERT_LAYERS = ("bert", "camembert", "electra", "roberta", "xlm-roberta")  # kinds of encoder with such layers


class LayerWeights(NamedTuple):
    """The weights of a layer, in one type; W is the width of the model, I that of the feed-forward part.

    Matrices are (outputs, inputs): `query`, `key`, `value`, `out` (W, W), `up` (I, W), `down` (W, I). The rest are
    vectors: a bias for each, weight and bias of the two normalisations.
    """

    query: torch.Tensor
    query_bias: torch.Tensor
    key: torch.Tensor
    key_bias: torch.Tensor
    value: torch.Tensor
    value_bias: torch.Tensor
    out: torch.Tensor
    out_bias: torch.Tensor
    first_norm: torch.Tensor
    first_norm_bias: torch.Tensor
    up: torch.Tensor
    up_bias: torch.Tensor
    down: torch.Tensor
    down_bias: torch.Tensor
    last_norm: torch.Tensor
    last_norm_bias: torch.Tensor

    @classmethod
    def of(cls, layer: Any) -> LayerWeights:
        attention, out = layer.attention.self, layer.attention.output
        parts = (attention.query, attention.key, attention.value, out.dense, out.LayerNorm)
        parts = (*parts, layer.intermediate.dense, layer.output.dense, layer.output.LayerNorm)
        return cls(*(tensor for part in parts for tensor in (part.weight, part.bias)))


class LayerShape(NamedTuple):
    """R sequences of T tokens, H heads, and the number that keeps a normalisation from dividing by zero."""

    sequences: int
    tokens: int
    heads: int
    epsilon: float

    def to_heads(self, rows: torch.Tensor, parts: int) -> torch.Tensor:
        """(R * T, parts * W) -> (parts, R * H, T, W / H), a copy."""
        apart = rows.view(self.sequences, self.tokens, parts, self.heads, -1).permute(2, 0, 3, 1, 4)
        return apart.reshape(parts, self.sequences * self.heads, self.tokens, -1)

    def to_rows(self, heads: torch.Tensor) -> torch.Tensor:
        """(parts, R * H, T, W / H) -> (R * T, parts * W), a copy."""
        apart = heads.view(len(heads), self.sequences, self.heads, self.tokens, -1).permute(1, 3, 0, 2, 4)
        return apart.reshape(self.sequences * self.tokens, -1)


class FusedLayer(torch.autograd.Function):
    """(R * T, W) -> (R * T, W): attention, then the feed-forward part, each added to its input and normalised."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, mask: torch.Tensor, shape: LayerShape, *weights: torch.Tensor
    ) -> torch.Tensor:
        """Compute the layer; `mask` is additive, (R * H, T, T), and all tensors are of one type."""
        w = LayerWeights(*weights)
        width = rows.shape[1:]
        side, bias = torch.cat([w.query, w.key, w.value]), torch.cat([w.query_bias, w.key_bias, w.value_bias])
        sides = shape.to_heads(F.linear(rows, side, bias), parts=3)
        query, key, value = sides
        shares = torch.baddbmm(mask, query, key.mT, alpha=query.shape[-1] ** -0.5)
        torch.softmax(shares, dim=-1, out=shares)
        seen = shape.to_rows(torch.bmm(shares, value)[None])
        first = F.linear(seen, w.out, w.out_bias).add_(rows)
        middle, *first_moments = torch.native_layer_norm(first, width, w.first_norm, w.first_norm_bias, shape.epsilon)
        inner = F.linear(middle, w.up, w.up_bias)
        active = F.gelu(inner)
        last = F.linear(active, w.down, w.down_bias).add_(middle)
        out, *last_moments = torch.native_layer_norm(last, width, w.last_norm, w.last_norm_bias, shape.epsilon)
        ctx.shape = shape
        ctx.save_for_backward(
            *(rows, side, sides, shares, seen, first, *first_moments, middle, inner, active, last, *last_moments),
            *weights,
        )
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of rows and weights; each product adds up in fp32 and is rounded once."""
        shape: LayerShape = ctx.shape
        rows, side, sides, shares, seen, first, *saved = ctx.saved_tensors
        first_mean, first_scale, middle, inner, active, last, last_mean, last_scale, *weights = saved
        w = LayerWeights(*weights)
        query, key, value = sides
        normalised_backward, width, all_three = torch.ops.aten.native_layer_norm_backward, rows.shape[1:], [True] * 3

        d_last, d_last_norm, d_last_norm_bias = normalised_backward(
            gradient.contiguous(), last, width, last_mean, last_scale, w.last_norm, w.last_norm_bias, all_three
        )
        # The wide side first: the product of the same numbers the other way round takes half as long again.
        d_down, d_down_bias = (active.T @ d_last).T.contiguous(), d_last.sum(0)
        d_inner = d_last @ w.down
        torch.ops.aten.gelu_backward.grad_input(d_inner, inner, grad_input=d_inner)
        d_up, d_up_bias = d_inner.T @ middle, d_inner.sum(0)
        d_first, d_first_norm, d_first_norm_bias = normalised_backward(
            d_last.addmm_(d_inner, w.up), first, width, first_mean, first_scale, w.first_norm, w.first_norm_bias, all_three
        )
        d_out, d_out_bias = d_first.T @ seen, d_first.sum(0)

        [d_seen] = shape.to_heads(d_first @ w.out, parts=1)
        d_shares = torch.bmm(d_seen, value.mT)
        torch.ops.aten._softmax_backward_data.out(d_shares, shares, -1, shares.dtype, grad_input=d_shares)
        d_sides, scale = torch.empty_like(sides), query.shape[-1] ** -0.5
        d_sides[0].baddbmm_(d_shares, key, beta=0, alpha=scale)
        d_sides[1].baddbmm_(d_shares.mT, query, beta=0, alpha=scale)
        torch.bmm(shares.mT, d_seen, out=d_sides[2])
        d_sides = shape.to_rows(d_sides)
        d_query, d_key, d_value = (d_sides.T @ rows).chunk(3)
        d_query_bias, d_key_bias, d_value_bias = d_sides.sum(0).chunk(3)
        d_rows = d_first.addmm_(d_sides, side)
        of_weights = LayerWeights(
            query=d_query,
            query_bias=d_query_bias,
            key=d_key,
            key_bias=d_key_bias,
            value=d_value,
            value_bias=d_value_bias,
            out=d_out,
            out_bias=d_out_bias,
            first_norm=d_first_norm,
            first_norm_bias=d_first_norm_bias,
            up=d_up,
            up_bias=d_up_bias,
            down=d_down,
            down_bias=d_down_bias,
            last_norm=d_last_norm,
            last_norm_bias=d_last_norm_bias,
        )
        return d_rows, None, None, *of_weights


def fused_layer(layer: Any, hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """Return what a BERT layer without dropout returns; hidden states (R, T, W), mask (R, H, T, T) additive."""
    heads = layer.attention.self.num_attention_heads
    shape = LayerShape(*hidden.shape[:2], heads, layer.output.LayerNorm.eps)
    rows, mask = hidden.flatten(0, 1), attention_mask.flatten(0, 1)
    return FusedLayer.apply(rows, mask, shape, *LayerWeights.of(layer)).view_as(hidden)


def use_fused_layers(model: nn.Module) -> None:
    """Make the layers of every encoder inside `model` compute so, wherever they compute in bf16 and drop nothing."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and part.config.model_type in BERT_LAYERS:
            if part.config.hidden_act == "gelu":
                for layer in part.get_submodule("encoder.layer").children():
                    layer.forward = MethodType(_forward, layer)


def _forward(layer: Any, hidden_states: torch.Tensor, attention_mask: torch.Tensor, *given: Any, **named: Any) -> Any:
    dropouts = (layer.attention.self.dropout, layer.attention.output.dropout, layer.output.dropout)
    drops = layer.training and any(each.p for each in dropouts)
    if hidden_states.dtype != torch.bfloat16 or drops:
        return type(layer).forward(layer, hidden_states, attention_mask, *given, **named)
    return fused_layer(layer, hidden_states, attention_mask)
