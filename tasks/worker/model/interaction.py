"""Feature interactions over [text vector, numeric, categorical], after DCN-v2 (Wang et al. 2021, arXiv:2008.13535).

This file needs torch alone: a released model that has an interaction carries a copy of it.
"""

from __future__ import annotations

import torch
from torch import nn


class Interaction(nn.Module):
    """embedding = skip(text) + out([crosses, deep]), with `out` starting at zero: training starts from the encoder.

    The explicit part is x_(l+1) = x_0 * (W_l x_l + b_l) + x_l, the implicit part an MLP with ReLU; both in parallel.
    """

    def __init__(
        self,
        text_width: int,
        numeric: int,
        categories: list[int],
        kind: str,
        cross_layers: int,
        deep_widths: list[int],
        categorical_width: int,
        output_width: int,
    ) -> None:
        """`categories` holds the number of rows of each categorical feature's embedding."""
        super().__init__()
        width = text_width + numeric + len(categories) * categorical_width
        self.tables = nn.ModuleList(nn.Embedding(rows, categorical_width) for rows in categories)
        self.crosses = nn.ModuleList(
            nn.Linear(width, width) for _ in range(cross_layers if kind in ("explicit", "both") else 0)
        )
        deep: list[nn.Module] = []
        last = width
        for deep_width in deep_widths if kind in ("implicit", "both") else []:
            deep += [nn.Linear(last, deep_width), nn.ReLU()]
            last = deep_width
        self.deep = nn.Sequential(*deep)
        joined = (width if len(self.crosses) else 0) + (last if deep else 0)
        self.out = nn.Linear(joined, output_width)
        self.skip = nn.Identity() if text_width == output_width else nn.Linear(text_width, output_width, bias=False)
        for layer in [*self.crosses, *self.deep]:
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)
        for table in self.tables:
            nn.init.normal_(table.weight, std=0.02)  # type: ignore[arg-type]
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    def forward(self, text: torch.Tensor, numeric: torch.Tensor, categorical: torch.Tensor) -> torch.Tensor:
        """text (B, D) float32, numeric (B, N) float32, categorical (B, C) int64 -> (B, E) float32, not normalised."""
        named = [table(categorical[:, column]) for column, table in enumerate(self.tables)]
        start = torch.cat([text, numeric, *named], dim=1)
        parts = []
        if len(self.crosses):
            crossed = start
            for cross in self.crosses:
                crossed = start * cross(crossed) + crossed
            parts.append(crossed)
        if len(self.deep):
            parts.append(self.deep(start))
        return self.skip(text) + self.out(torch.cat(parts, dim=1))
