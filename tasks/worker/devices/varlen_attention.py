"""Attention of packed texts by their lengths, for NVIDIA GPUs: FlashAttention reads each text alone, without a mask.

A mask of all pairs of tokens, as other devices use, costs T times as much memory as the tokens, and keeps the fast
kernels out. Encoders with causal or local layers keep the mask.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

VARLEN = "millrace_varlen"


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

    def texts(side: torch.Tensor) -> torch.Tensor:
        along = side.transpose(1, 2).reshape(rows * tokens, heads, -1)  # all rows one after another
        return torch.nested.nested_tensor_from_jagged(along, offsets, min_seqlen=1, max_seqlen=tokens).transpose(1, 2)

    seen = F.scaled_dot_product_attention(*map(texts, (query, key, value)), dropout_p=dropout, scale=scaling)
    return seen.transpose(1, 2).values().view(rows, tokens, heads, -1), None


AttentionInterface.register(VARLEN, varlen_attention)


def takes_lengths(encoder: PreTrainedModel) -> bool:
    """Return True if the encoder was set to this attention."""
    return encoder.config._attn_implementation == VARLEN
