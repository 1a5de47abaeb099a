"""What the label of a row says of its query and item: the class of the row, and whether they belong together."""

import numpy as np
import pyarrow as pa

from configs.schema.training import HeadsConfig
from tasks.data.rows import LABEL


def label_classes(rows: pa.Table, heads: HeadsConfig) -> np.ndarray:
    """Return classes, int64 (rows,): 0, 1, or -1 without a class (no label, one between, no classification head)."""
    classes = np.full(rows.num_rows, -1, dtype=np.int64)
    if heads.classification is not None:
        labels = rows[LABEL].to_numpy().astype(np.float64)  # null becomes NaN, and NaN compares false
        classes[labels <= heads.classification.negative_max] = 0
        classes[labels >= heads.classification.positive_min] = 1
    return classes


def pair_mask(rows: pa.Table, heads: HeadsConfig) -> np.ndarray:
    """Return whether query and item belong together, bool (rows,)."""
    if heads.contrastive is not None and heads.contrastive.positives_only:
        return label_classes(rows, heads) == 1
    return np.ones(rows.num_rows, dtype=bool)
