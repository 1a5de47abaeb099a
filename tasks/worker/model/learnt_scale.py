"""The scale of the contrastive softmax as a weight of the model: the inverse of its temperature, learnt.

Radford et al. 2021 (arXiv:2103.00020, section 2.3) learn it as the exponent of a weight, and cut it off at 100. Here a
sigmoid bounds it, so that a scale near the bound can still come back.
"""

import math

import torch
from torch import nn

from configs.schema.training import LARGEST_SCALE

# A step of AdamW is about as large as the learning rate, which suits an encoder. This one number has a longer way.
_PACE = 100.0


class LearntScale(nn.Module):
    """A scale between 1 and LARGEST_SCALE; of one dimension less than a bias, so weight decay leaves it alone."""

    def __init__(self, scale: float) -> None:
        """Begin at `scale`, which is between the bounds."""
        super().__init__()
        share = math.log(scale) / math.log(LARGEST_SCALE)
        self.logit = nn.Parameter(torch.tensor(math.log(share / (1.0 - share)) / _PACE))

    def forward(self) -> torch.Tensor:
        """Return the scale, float32 ()."""
        # The value is _PACE times the weight; the gradient is that of the value, so clipping sees it as it is.
        value = self.logit + (_PACE - 1.0) * self.logit.detach()
        return torch.exp(math.log(LARGEST_SCALE) * torch.sigmoid(value))
