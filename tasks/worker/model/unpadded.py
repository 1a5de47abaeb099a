"""Concatenated texts with hardly any padding and no mask: fastest on devices that allow variable shapes.

Texts of equal length are adjacent, so that each group is one dense array for attention and pooling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from tasks.data.encoders import Pooling
from tasks.worker.model.features import FeatureArrays
from tasks.worker.model.tokens import TokenLists


@dataclass(frozen=True)
class UnpaddedTexts:
    """B texts, the longest first, of N tokens in total, including a little padding after the last text.

    `ids` and `positions` int64 (1, N): each token, and its position in its text; `groups` int64 (1, 1, G, 2): the
    number of texts in each group and the tokens per text; `numeric` float32 (B, F); `categorical` int64 (B, C).
    """

    ids: torch.Tensor
    positions: torch.Tensor
    groups: torch.Tensor
    numeric: torch.Tensor
    categorical: torch.Tensor

    @classmethod
    def of(cls, tokens: TokenLists, rows: np.ndarray, lengths: np.ndarray, features: FeatureArrays) -> UnpaddedTexts:
        """Return texts on the host.

        Args:
            rows: int64 (B,), rows of `tokens`, the longest text first.
            lengths: int64 (B,), at least 1: tokens to take from each text.
            features: one row per text.
        """
        count = int(lengths.sum())
        within = np.arange(count) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        ids = tokens.ids[np.repeat(tokens.offsets[rows], lengths) + within].astype(np.int64)
        padding = (0, round_length_up(count) - count)
        ids, within = np.pad(ids, padding, constant_values=tokens.pad), np.pad(within, padding)
        longest_first, texts = (each[::-1] for each in np.unique(lengths, return_counts=True))
        groups = np.stack([texts, longest_first], axis=1)
        ids, within, groups = (torch.from_numpy(each) for each in (ids[None], within[None], groups[None, None]))
        return cls(ids, within, groups, torch.from_numpy(features.numeric), torch.from_numpy(features.categorical))

    def to(self, device: torch.device) -> UnpaddedTexts:
        return UnpaddedTexts(**{name: value.to(device) for name, value in vars(self).items()})


def round_length_up(tokens: int) -> int:
    """Round the length of a batch up: by at most an eighth, or to a multiple of 16.

    The CPU's matrix library keeps megabytes for each distinct length; rounding keeps their number small.
    """
    step = max(16, 1 << max(0, tokens.bit_length() - 4))
    return -(-tokens // step) * step


def split_batches(lengths: np.ndarray, tokens: int) -> Iterator[slice]:
    """Yield the texts of each batch: at most `tokens` tokens, but at least one text; `lengths` int64 (texts,)."""
    ends, start = np.cumsum(lengths), 0
    while start < len(lengths):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + tokens, side="right")))
        yield slice(start, stop)
        start = stop


def pool(hidden: torch.Tensor, groups: torch.Tensor, pooling: Pooling) -> torch.Tensor:
    """Return the pooled vector of each text, float32 (B, D), from hidden states of all tokens, float32 (N, D)."""
    sizes: list[tuple[int, int]] = groups.flatten(0, 2).tolist()
    tokens = [texts * length for texts, length in sizes]
    parts = hidden[: sum(tokens)].split(tokens)
    shaped = [part.unflatten(0, size) for part, size in zip(parts, sizes, strict=True)]  # (texts, length, D)
    if pooling == "mean":
        return torch.cat([part.mean(dim=1) for part in shaped])
    return torch.cat([part[:, 0 if pooling == "cls" else -1] for part in shaped])
