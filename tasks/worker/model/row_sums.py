"""Summed row weights of a run, by class and by label, from which classes are balanced."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from configs.schema.label_heads import LabelHead


@dataclass
class RowSums:
    """Sums of the weights of rows."""

    weight: float
    by_class: np.ndarray  # float64 (classes,), of the classification head
    by_value: dict[str, np.ndarray]  # float64 (values,), by label head; empty for regression

    @classmethod
    def of(cls, heads: Mapping[str, LabelHead], classes: int) -> RowSums:
        """Return sums of zero."""
        by_value = {name: np.zeros(head.outputs if head.of_names else 0) for name, head in heads.items()}
        return cls(0.0, np.zeros(classes), by_value)

    def add(self, rows: np.ndarray) -> None:
        """Add records with `weight`, `label_class` (-1: none) and `labels` (NaN: none)."""
        self.weight += float(rows["weight"].sum(dtype=np.float64))
        self.by_class += _by_value(rows["label_class"], rows["label_class"] >= 0, rows["weight"], len(self.by_class))
        for place, sums in enumerate(self.by_value.values()):
            labels = rows["labels"][:, place]
            if len(sums):
                sums += _by_value(labels, ~np.isnan(labels), rows["weight"], len(sums))


def _by_value(values: np.ndarray, known: np.ndarray, weights: np.ndarray, many: int) -> np.ndarray:
    """Return the sum of the weights of the known rows with each value, float64 (many,)."""
    return np.bincount(values[known].astype(np.int64), weights[known].astype(np.float64), many)
