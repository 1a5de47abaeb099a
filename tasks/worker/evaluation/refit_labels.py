"""Label heads, solved on the newest training rows; see `refit.py`."""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from tasks.contracts.checkpoints import GroupRange, LabelHeadSolved
from tasks.data.label_columns import label_values, row_weights
from tasks.data.rows import QUERY
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.evaluation.newest_rows import inputs_of, newest_rows
from tasks.worker.model.label_heads import LABEL_TASKS
from tasks.worker.model.label_task import FOLDS, LabelledRows
from tasks.worker.model.relevant import hash_queries
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import ModelParts


def solve_label_head(
    job: Job,
    parts: ModelParts,
    accelerator: Accelerator,
    name: str,
    step: int,
    spared: Mapping[str, GroupRange],
    beat: Callable[[], None],
) -> None:
    """Solve one label head with `refit_rows`, for `solve_heads`."""
    head, task = job.config.heads.of_labels[name], LABEL_TASKS[name]
    assert head.refit_rows is not None
    accelerator.name_work(f"the head {name}")
    rows, development = newest_rows(job, head.refit_rows, lambda table: _usable(table, job, name), spared)
    truth, folds = label_values(rows, head), hash_queries(rows[QUERY].to_pylist()) % FOLDS
    few = task.find_shortage(truth, head) or ("all rows are of one query" if len(np.unique(folds)) < 2 else "")
    if few:
        print(f"the head {name} is not solved: {few}", flush=True)
        return
    known, unseen = (
        None if table is None else _labelled(job, parts, accelerator, name, table, beat)
        for table in (rows, development)
    )
    assert known is not None
    linear = parts.model.label_heads[name]
    assert isinstance(linear, nn.Linear)
    weight, bias = (torch.zeros(each.shape) for each in (linear.weight, linear.bias))
    strength, metrics = torch.zeros(1, dtype=torch.float64), {}
    if job.rank.is_main:
        solved = task.solve(known, unseen, head)
        weight, bias = torch.from_numpy(solved.weight), torch.from_numpy(solved.bias)
        strength, metrics = torch.tensor([solved.strength], dtype=torch.float64), solved.metrics
    beat()
    with torch.no_grad():
        for parameter, value in ((linear.weight, weight), (linear.bias, bias)):
            parameter.copy_(accelerator.upload(accelerator.sum(value)))
    parts.model.labels_solved[name] = LabelHeadSolved(
        step=step,
        rows=rows.num_rows,
        strength=float(accelerator.sum(strength).item()),
        calibration_rows=0 if development is None else development.num_rows,
        metrics=metrics,
    )


def _labelled(
    job: Job, parts: ModelParts, accelerator: Accelerator, name: str, rows: pa.Table, beat: Callable[[], None]
) -> LabelledRows:
    """Return rows as the head's inputs and targets; the workers share the work."""
    head = job.config.heads.of_labels[name]
    return LabelledRows(
        inputs=inputs_of(job, parts, accelerator, head.input, rows, beat),
        truth=label_values(rows, head),
        counts=row_weights(rows, job.config.train.row_weight),
        folds=hash_queries(rows[QUERY].to_pylist()) % FOLDS,
    )


def _usable(table: pa.Table, job: Job, name: str) -> np.ndarray:
    """Return bool (rows,): True if the row has a label and a weight above 0."""
    weights = row_weights(table, job.config.train.row_weight)
    known: np.ndarray = ~np.isnan(label_values(table, job.config.heads.of_labels[name])) & (weights > 0)
    return known
