"""Attention as plain batched matrix products, for processors and for XLA.

On a CPU the library's fused attention has a slow bf16 backward pass, and its eager one computes the softmax in fp32;
docs/benchmarks.md has the figures. XLA fuses plain operations itself. GPUs keep the fused attention.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from tasks.pretrained.encoders import kind_of

MATMUL = "millrace_matmul"


def matmul_attention(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor,
    dropout: float = 0.0,
    scaling: float | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """softmax(scaling * q k^T + mask) v; q, k, v (B, H, T, D), mask (B, 1 or H, T, T) additive -> (B, T, H, D)."""
    batch, heads, tokens, width = query.shape
    if (shared := heads // key.shape[1]) > 1:  # several heads of queries share one of keys and values
        key, value = (side.repeat_interleave(shared, dim=1) for side in (key, value))
    queries, keys, values = (side.reshape(batch * heads, tokens, width) for side in (query, key, value))
    mask = attention_mask.to(query.dtype).expand(batch, heads, tokens, tokens).reshape(batch * heads, tokens, tokens)
    scores = torch.baddbmm(mask, queries, keys.mT, alpha=width**-0.5 if scaling is None else scaling)
    weights = F.dropout(torch.softmax(scores, dim=-1, dtype=query.dtype), dropout, module.training)
    return torch.bmm(weights, values).view(batch, heads, tokens, width).transpose(1, 2), None


AttentionInterface.register(MATMUL, matmul_attention)


def use_matmul_attention(model: nn.Module) -> None:
    """Make every encoder inside `model` use this attention, if its own can be replaced."""
    for part in model.modules():
        if isinstance(part, PreTrainedModel) and not kind_of(part.config.model_type).own_attention:
            part.set_attn_implementation(MATMUL)
