"""A learnt scale of the contrastive softmax: its inverse temperature, as a weight of the model.

Radford et al. 2021 (arXiv:2103.00020, section 2.3) learn its logarithm and clip the scale at 100. Here a sigmoid bounds
it, so that a scale near the bound still gets a gradient.
"""

import math

import torch
from torch import nn

from configs.schema.training import LARGEST_SCALE

# A step of AdamW is about as large as the learning rate, tuned for an encoder. This single number must move farther.
_PACE = 100.0


class LearntScale(nn.Module):
    """A scale between 1 and LARGEST_SCALE; its weight is a scalar, which weight decay skips."""

    def __init__(self, scale: float) -> None:
        """Start at `scale`, which lies between the bounds."""
        super().__init__()
        share = math.log(scale) / math.log(LARGEST_SCALE)
        self.logit = nn.Parameter(torch.tensor(math.log(share / (1.0 - share)) / _PACE))

    def forward(self) -> torch.Tensor:
        """Return the scale, float32 ()."""
        # The value is _PACE times the weight, but the gradient is not scaled, so that clipping sees its real size.
        value = self.logit + (_PACE - 1.0) * self.logit.detach()
        return torch.exp(math.log(LARGEST_SCALE) * torch.sigmoid(value))
