"""The encoder's layers on each kind of device: attention in two other ways, and a whole BERT layer for CPUs.

Plain batched matrix products are for CPUs and XLA: on a CPU the library's fused attention has a slow bf16 backward
pass, and its eager attention computes the softmax in fp32; docs/benchmarks.md has the figures. XLA fuses plain
operations itself. Unpadded texts (one after another) on a CPU keep the fused attention, since they need no backward
pass.

NVIDIA GPUs take packed texts by their lengths: FlashAttention reads each text alone. A mask of all pairs of tokens, as
other devices use, costs T times as much memory as the tokens, and keeps the fast kernels out. Encoders with causal or
local layers keep the mask.

On a CPU a step of a small encoder waits for memory as long as it multiplies. So in a BERT layer query, key and value
are one product in each direction, weights are packed for oneDNN once per product, bias and residual are fused into the
product, and buffers are overwritten as soon as possible.
"""

from __future__ import annotations

from types import MethodType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from tasks.data.pretrained import kind_of

MATMUL = "millrace_matmul"


def matmul_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """softmax(scaling * q k^T + mask) v; q, k, v (B, H, T, D), mask (B, 1 or H, T, T) additive -> (B, T, H, D).

    An integer mask holds the groups of unpadded texts, in a batch of one. `sliding_window` is used only for these:
    tokens at this distance or farther are masked. Other masks already contain the window.
    """
    batch, heads, tokens, width = query.shape
    if (shared := heads // key.shape[1]) > 1:  # grouped-query attention
        key, value = (side.repeat_interleave(shared, dim=1) for side in (key, value))
    if not attention_mask.is_floating_point():
        queries, keys, values = (side[0].transpose(0, 1) for side in (query, key, value))
        causal = getattr(module, "is_causal", False)
        return unpadded_attention(queries, keys, values, attention_mask, scaling, causal, sliding_window)[None], None
    queries, keys, values = (side.reshape(batch * heads, tokens, width) for side in (query, key, value))
    mask = attention_mask.to(query.dtype).expand(batch, heads, tokens, tokens).reshape(batch * heads, tokens, tokens)
    scores = torch.baddbmm(mask, queries, keys.mT, alpha=width**-0.5 if scaling is None else scaling)
    weights = F.dropout(torch.softmax(scores, dim=-1, dtype=query.dtype), dropout, module.training)
    return torch.bmm(weights, values).view(batch, heads, tokens, width).transpose(1, 2), None


def unpadded_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    groups: torch.Tensor,
    scaling: float | None = None,
    causal: bool = False,
    window: int | None = None,
) -> torch.Tensor:
    """Attention of unpadded texts, each token within its own text; (N, H, D) each -> (N, H, D).

    Args:
        groups: as in `InLine`, on the host.
        causal: mask the tokens after each token.
        window: mask tokens at this distance or farther; None: no limit.
    """
    out, start = torch.empty(query.shape, dtype=query.dtype), 0
    for size in groups.flatten(0, 2).tolist():
        part = slice(start, start := start + size[0] * size[1])
        # (texts, H, T, D) each
        queries, keys, values = (side[part].unflatten(0, size).transpose(1, 2) for side in (query, key, value))
        if window is not None and size[1] > window:
            at = torch.arange(size[1])
            distance = at[:, None] - at
            near = (distance.abs() < window) & (distance >= 0) if causal else distance.abs() < window
            seen = F.scaled_dot_product_attention(queries, keys, values, attn_mask=near, scale=scaling)
        else:
            seen = F.scaled_dot_product_attention(queries, keys, values, is_causal=causal, scale=scaling)
        out[part].unflatten(0, size).copy_(seen.transpose(1, 2))
    out[start:] = 0.0  # padding
    return out


AttentionInterface.register(MATMUL, matmul_attention)


def use_attention(model: nn.Module, name: str) -> None:
    """Set a registered attention in every encoder inside `model` that allows it."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and not kind_of(part.config.model_type).own_attention:
            part.set_attn_implementation(name)


def supports_unpadded(encoder: PreTrainedModel) -> bool:
    """Return True if the encoder accepts unpadded texts."""
    return encoder.config._attn_implementation == MATMUL


VARLEN = "millrace_varlen"
# The operation that nested tensors end in. They take 15 ms a layer of a step to find it, in Python: four fifths of a
# step on an H100. From torch 2.10 on it has a public name, torch.nn.attention.varlen.
FLASH_ATTENTION = torch.ops.aten._flash_attention_forward
FLASH_DTYPES = (torch.bfloat16, torch.float16)
FLASH_WIDTH = 8  # the width of a head is a multiple of it; nested tensors pad others


def offsets_of(segments: torch.Tensor, most: int) -> torch.Tensor:
    """Return where each text and each row's padding begins among all tokens, and the end: int64 (1, 1, 1, texts + 1).

    Computed on the device, without waiting for it; an absent text has no tokens.

    Args:
        segments: int64 (R, T): number of the text within the row, ascending; -1 is padding, at the row's end.
        most: texts in a row.
    """
    rows = len(segments)
    counts = torch.zeros(rows, most + 1, dtype=torch.int64, device=segments.device)
    place = torch.where(segments < 0, most, segments)
    counts.scatter_add_(1, place, torch.ones_like(segments))
    return F.pad(counts.flatten().cumsum(0), (1, 0))[None, None, None]


def varlen_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention within each text; q, k, v (R, H, T, D) -> (R, T, H, D).

    An integer `attention_mask` holds `offsets_of` the rows; a float one is additive, as for the library's attention.
    """
    rows, heads, tokens = query.shape[:3]
    if (shared := heads // key.shape[1]) > 1:  # grouped-query attention
        key, value = (side.repeat_interleave(shared, dim=1) for side in (key, value))
    dropout = dropout if module.training else 0.0
    if attention_mask.is_floating_point():
        mask = attention_mask.to(query.dtype)
        seen = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=dropout, scale=scaling)
        return seen.transpose(1, 2), None
    offsets = attention_mask.flatten()
    along = [side.transpose(1, 2).reshape(rows * tokens, heads, -1) for side in (query, key, value)]  # row after row
    if query.is_cuda and query.dtype in FLASH_DTYPES and query.shape[-1] % FLASH_WIDTH == 0:
        ends = offsets.to(torch.int32)
        longest = (tokens, tokens)
        seen = FLASH_ATTENTION(*along, ends, ends, *longest, dropout, False, False, scale=scaling)[0]
        return seen.view(rows, tokens, heads, -1), None
    jagged = torch.nested.nested_tensor_from_jagged
    texts = [jagged(side, offsets, min_seqlen=1, max_seqlen=tokens).transpose(1, 2) for side in along]
    seen = F.scaled_dot_product_attention(*texts, dropout_p=dropout, scale=scaling)
    return seen.transpose(1, 2).values().view(rows, tokens, heads, -1), None


AttentionInterface.register(VARLEN, varlen_attention)


def takes_lengths(encoder: PreTrainedModel) -> bool:
    """Return True if the encoder was set to this attention."""
    return encoder.config._attn_implementation == VARLEN


BERT_LAYERS = ("bert", "camembert", "electra", "roberta", "xlm-roberta")  # encoders with such layers


class LayerWeights(NamedTuple):
    """The weights of a layer, all of one dtype; W is the model's width, I the feed-forward width.

    Matrices are (outputs, inputs): `query`, `key`, `value`, `out` (W, W), `up` (I, W), `down` (W, I). The others are
    vectors: the biases, and weight and bias of the two layer norms.
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
    """R sequences of T tokens, H heads, and the epsilon of the layer norms."""

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


class Attended(NamedTuple):
    """The first half of a layer.

    `side` (3 W, W): weights of query, key and value; `sides` (3, R * H, T, W / H): their products. `shares`
    (R * H, T, T): attention weights; `seen` (R * T, W): the attention's output; `first`: its projection plus the input;
    `mean` and `scale`: of the rows of `first`; `middle`: `first`, normalised.
    """

    side: torch.Tensor
    sides: torch.Tensor
    shares: torch.Tensor
    seen: torch.Tensor
    first: torch.Tensor
    middle: torch.Tensor
    mean: torch.Tensor
    scale: torch.Tensor


def _attended(rows: torch.Tensor, mask: torch.Tensor, shape: LayerShape, w: LayerWeights) -> Attended:
    side, bias = torch.cat([w.query, w.key, w.value]), torch.cat([w.query_bias, w.key_bias, w.value_bias])
    sides = shape.to_heads(_linear(rows, side, bias), parts=3)
    query, key, value = sides
    shares = torch.baddbmm(mask, query, key.mT, alpha=query.shape[-1] ** -0.5)
    torch.softmax(shares, dim=-1, out=shares)
    seen = shape.to_rows(torch.bmm(shares, value)[None])
    first = _linear(seen, w.out, w.out_bias, added=rows)
    normalised = torch.native_layer_norm(first, rows.shape[1:], w.first_norm, w.first_norm_bias, shape.epsilon)
    return Attended(side, sides, shares, seen, first, *normalised)


def _linear(
    rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, added: torch.Tensor | None = None, after: str = "none"
) -> torch.Tensor:
    """Return rows @ weight.T + bias (then + `added`, or `gelu`), accumulated in fp32 and rounded once."""
    packed = torch.ops.mkldnn._reorder_linear_weight(weight, len(rows))  # oneDNN's layout; takes hardly any time
    if added is not None:
        return torch.ops.mkldnn._linear_pointwise.binary(rows, added, packed, bias, "add")
    return torch.ops.mkldnn._linear_pointwise(rows, packed, bias, after, [], "none")


def unpadded_layer(layer: Any, hidden: torch.Tensor, groups: torch.Tensor) -> torch.Tensor:
    """A BERT layer in evaluation without gradients, for unpadded texts: (1, N, W) -> (1, N, W).

    GELU is fused into the product before it.

    Args:
        groups: as in `InLine`.
    """
    w, heads, epsilon = LayerWeights.of(layer), layer.attention.self.num_attention_heads, layer.output.LayerNorm.eps
    rows, width = hidden[0], hidden.shape[2:]
    side, bias = torch.cat([w.query, w.key, w.value]), torch.cat([w.query_bias, w.key_bias, w.value_bias])
    query, key, value = _linear(rows, side, bias).view(len(rows), 3, heads, -1).unbind(1)
    seen = unpadded_attention(query, key, value, groups).flatten(1)
    first = _linear(seen, w.out, w.out_bias, added=rows)
    middle = F.layer_norm(first, width, w.first_norm, w.first_norm_bias, epsilon)
    last = _linear(_linear(middle, w.up, w.up_bias, after="gelu"), w.down, w.down_bias, added=middle)
    return F.layer_norm(last, width, w.last_norm, w.last_norm_bias, epsilon)[None]


class FusedLayer(torch.autograd.Function):
    """(R * T, W) -> (R * T, W): attention, then the feed-forward part, each added to its input and normalised."""

    @staticmethod
    def forward(
        ctx: Any, rows: torch.Tensor, mask: torch.Tensor, shape: LayerShape, *weights: torch.Tensor
    ) -> torch.Tensor:
        """Compute the layer; `mask` is additive, (R * H, T, T); all tensors have one dtype."""
        w = LayerWeights(*weights)
        attended = _attended(rows, mask, shape, w)
        inner = _linear(attended.middle, w.up, w.up_bias)
        active = F.gelu(inner)
        last = _linear(active, w.down, w.down_bias, added=attended.middle)
        out, *moments = torch.native_layer_norm(last, rows.shape[1:], w.last_norm, w.last_norm_bias, shape.epsilon)
        ctx.shape = shape
        ctx.save_for_backward(rows, inner, active, last, *moments, *attended, *weights)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Return the gradients of rows and weights; each product accumulates in fp32 and is rounded once."""
        shape: LayerShape = ctx.shape
        rows, inner, active, last, mean, scale, *saved = ctx.saved_tensors
        side, sides, shares, seen, first, middle, first_mean, first_scale = saved[: len(Attended._fields)]
        w = LayerWeights(*saved[len(Attended._fields) :])
        query, key, value = sides

        d_last, d_last_norm, d_last_norm_bias = _normalised_backward(
            gradients[0].contiguous(), last, mean, scale, w.last_norm, w.last_norm_bias
        )
        # The wide side first: the transposed product takes 1.5 times as long.
        d_down, d_down_bias = (active.T @ d_last).T.contiguous(), d_last.sum(0)
        d_inner = d_last @ w.down
        torch.ops.aten.gelu_backward.grad_input(d_inner, inner, grad_input=d_inner)
        d_up, d_up_bias = d_inner.T @ middle, d_inner.sum(0)
        d_middle = d_last.addmm_(d_inner, w.up)
        d_first, d_first_norm, d_first_norm_bias = _normalised_backward(
            d_middle, first, first_mean, first_scale, w.first_norm, w.first_norm_bias
        )
        d_out, d_out_bias = d_first.T @ seen, d_first.sum(0)

        [d_seen] = shape.to_heads(d_first @ w.out, parts=1)
        d_shares = torch.bmm(d_seen, value.mT)
        torch.ops.aten._softmax_backward_data.out(d_shares, shares, -1, shares.dtype, grad_input=d_shares)
        d_sides, factor = torch.empty_like(sides), query.shape[-1] ** -0.5
        d_sides[0].baddbmm_(d_shares, key, beta=0, alpha=factor)
        d_sides[1].baddbmm_(d_shares.mT, query, beta=0, alpha=factor)
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


def _normalised_backward(
    gradient: torch.Tensor, rows: torch.Tensor, mean: torch.Tensor, scale: torch.Tensor, *weights: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of the rows, weight and bias of a layer norm."""
    backward, all_three = torch.ops.aten.native_layer_norm_backward, [True] * 3
    return backward(gradient, rows, rows.shape[1:], mean, scale, *weights, all_three)


def fused_layer(layer: Any, hidden: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
    """A BERT layer without dropout; hidden states (R, T, W), additive mask (R, H, T, T)."""
    sequences, tokens, _ = hidden.shape
    shape = LayerShape(sequences, tokens, layer.attention.self.num_attention_heads, layer.output.LayerNorm.eps)
    rows, mask, weights = hidden.flatten(0, 1), attention_mask.flatten(0, 1), LayerWeights.of(layer)
    out: Any = FusedLayer.apply(rows, mask, shape, *weights)
    return out.view_as(hidden)


def use_fused_layers(model: nn.Module) -> None:
    """Replace the forward pass of the BERT layers inside `model`; it serves bf16 without dropout.

    For unpadded texts it serves fp32 too; other cases keep the library's own pass.
    """
    if not torch.backends.mkldnn.is_available() or not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and part.config.model_type in BERT_LAYERS:
            layers = part.get_submodule("encoder.layer").children() if part.config.hidden_act == "gelu" else ()
            for layer in layers:
                layer.forward = MethodType(_forward, layer)


def _forward(layer: Any, hidden_states: torch.Tensor, attention_mask: torch.Tensor, *given: Any, **named: Any) -> Any:
    if not attention_mask.is_floating_point():
        return unpadded_layer(layer, hidden_states, attention_mask)
    dropouts = (layer.attention.self.dropout, layer.attention.output.dropout, layer.output.dropout)
    drops = layer.training and any(each.p for each in dropouts)
    if hidden_states.dtype != torch.bfloat16 or drops:
        return type(layer).forward(layer, hidden_states, attention_mask, *given, **named)
    return fused_layer(layer, hidden_states, attention_mask)
