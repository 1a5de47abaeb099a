"""Arithmetic that goes wrong at a chosen moment."""

from __future__ import annotations

import pytest
import torch


def break_product(monkeypatch: pytest.MonkeyPatch, at_call: int, value: float) -> None:
    """The matrix product number `at_call` from now on has `value` more at (3, 5)."""
    multiply, calls = torch.Tensor.__matmul__, []

    def wrong(left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        product = multiply(left, right)
        if len(calls) == at_call:
            product[3, 5] += value
        return product

    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong)
