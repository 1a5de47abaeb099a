"""Validated rows as training input: the split into training and holdout, token ids, features, classes."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from configs.schema.config import Config
from configs.schema.training import HeadsConfig
from infra.store.base import Store
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import RowsRef
from tasks.data.rows import ITEM, ITEM_ID, LABEL, QUERY, ROW_ID, is_holdout, read_rows
from tasks.foundation.errors import DataError
from tasks.worker.model.features import encode_features
from tasks.worker.model.tokens import tokenize
from tasks.worker.process.job import Job
from tasks.worker.training.batches import Pairs
from tasks.worker.training.checkpoint import ModelParts


def load_rows(store: Store, refs: Sequence[RowsRef], config: Config, also: Sequence[str] = ()) -> pa.Table:
    """Return validated rows with every column that the configuration uses, and those in `also`."""
    columns = [*config.features.numeric, *config.features.categorical, *config.evaluate.slices, *also]
    return read_rows(store, refs, columns)


def split_holdout(rows: pa.Table, share: float) -> tuple[pa.Table, pa.Table]:
    """Return (training rows, holdout rows), by a stable hash of the row id."""
    held = np.array([is_holdout(row_id, share) for row_id in rows[ROW_ID].to_pylist()], dtype=bool)
    return rows.filter(pa.array(~held)), rows.filter(pa.array(held))


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


def make_pairs(rows: pa.Table, parts: ModelParts, config: Config) -> Pairs:
    """Return training rows as arrays."""
    ladder = config.train.shapes
    pad = parts.model.pad
    return Pairs(
        query=tokenize(parts.tokenizer, rows[QUERY].to_pylist(), ladder.query[-1], pad),
        item=tokenize(parts.tokenizer, rows[ITEM].to_pylist(), ladder.item[-1], pad),
        query_features=encode_features(parts.features, rows, "query"),
        item_features=encode_features(parts.features, rows, "item"),
        item_key=np.unique(np.asarray(rows[ITEM_ID].to_pylist(), dtype=object).astype(str), return_inverse=True)[1],
        pair=pair_mask(rows, config.heads).astype(np.float32),
        label_class=label_classes(rows, config.heads),
    )


def read_training_rows(job: Job, inputs: TrainInputs) -> tuple[pa.Table, pa.Table]:
    """Return (training rows, holdout rows of these spans and all before). Raises DataError without training rows."""
    share = job.config.evaluate.holdout_share
    training, held = split_holdout(load_rows(job.store, inputs.rows, job.config), share)
    if not training.num_rows:
        raise DataError(f"span {job.spec.span.name}: all {held.num_rows} rows are held out, none is left to train on")
    if inputs.history:
        _, held_before = split_holdout(load_rows(job.store, inputs.history, job.config), share)
        held = pa.concat_tables([held_before, held], promote_options="permissive")
    return training, held
