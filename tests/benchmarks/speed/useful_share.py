"""How much of what the machine could multiply is used for the model's own products on real tokens.

The limit is the rate of one large bare matrix product, measured in the same minutes. Padding, softmax, copies and the
optimiser are not useful in this sense.
"""

from __future__ import annotations

import time

import numpy as np
import torch
from transformers import PretrainedConfig

SIZE = 2048
TRAINING = 3  # the backward pass multiplies twice as much as the forward pass
TYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


class BareProduct:
    """A square matrix product of one type, to be timed again and again."""

    def __init__(self, precision: str, device: str = "cpu", size: int = SIZE) -> None:
        self.flops = 2 * size**3
        self._factor = torch.rand(size, size).to(device, TYPES[precision])

    def seconds(self) -> float:
        wait = torch.cuda.synchronize if self._factor.is_cuda else lambda: None
        wait()
        began = time.perf_counter()
        torch.mm(self._factor, self._factor)
        wait()
        return time.perf_counter() - began


def encoder_flops(config: PretrainedConfig, lengths: np.ndarray) -> float:
    """Return the floating-point operations of a BERT encoder's matrix products; `lengths` int64 (texts,), tokens.

    A layer has for each token the four products of attention's projections and the two of the feed-forward part, and
    scores and sums over the tokens of its own text; a product of a row with an m by n matrix is 2mn operations.
    """
    width, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    each = 2 * (4 * width**2 + 2 * width * inner)
    tokens, squares = float(lengths.sum()), float((lengths.astype(np.float64) ** 2).sum())
    return layers * (tokens * each + 4 * width * squares)
