"""Attention as plain batched matrix products, for processors and for XLA.

On a CPU the library's fused attention has a slow bf16 backward pass, and its eager attention computes the softmax in
fp32; docs/benchmarks.md has the figures. XLA fuses plain operations itself. Unpadded texts (one
after another) on a CPU keep the fused attention, since they need no backward pass. GPUs: varlen_attention.py.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from tasks.data.encoders import kind_of

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
