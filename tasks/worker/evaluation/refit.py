"""The heads of a run, solved on the newest training rows once the encoder has taken its last step.

Many steps with a batch's few rows of a rare class find a head slowly; on fixed vectors it is a problem with one answer.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import torch

from configs.schema.config import Config
from tasks.contracts.checkpoints import HeadSolved
from tasks.data.label_columns import label_classes, row_weights
from tasks.data.rows import QUERY
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.evaluation.newest_rows import inputs_of, newest_rows
from tasks.worker.evaluation.refit_labels import solve_label_head
from tasks.worker.model.relevant import query_keys
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import ModelParts


def solve_heads(job: Job, parts: ModelParts, accelerator: Accelerator, step: int, alive: Callable[[], None]) -> None:
    """Replace each head that asks for it with `refit_rows` by one solved on the newest training rows.

    The workers share the embedding; the first one solves, and all get its weights. Too few rows leave a head as it is.
    The result depends on weights and rows alone, so a run killed here ends the same.

    Args:
        step: global steps taken.
        alive: called as long as work goes on.
    """
    solve_head(job, parts, accelerator, step, alive)
    for name, head in job.config.heads.of_labels.items():
        if head.refit_rows is not None:
            solve_label_head(job, parts, accelerator, name, step, alive)


def solve_head(job: Job, parts: ModelParts, accelerator: Accelerator, step: int, alive: Callable[[], None]) -> None:
    """Replace the head by one solved on the newest training rows of history and run, if `refit_rows` asks for it.

    The workers share the embedding; the first one solves, and all get its weights. A class with too few rows leaves the
    head as it is. The result depends on weights and rows alone, so a run killed here ends the same.

    Args:
        step: global steps taken.
        alive: called as long as work goes on.
    """
    head = job.config.heads.classification
    if head is None or head.refit_rows is None:
        return
    from tasks.worker.evaluation.solve import (
        FOLDS,  # takes seconds to import, and few runs need it
        LEAST_ROWS,
        solve,
    )

    accelerator.name_work("the classification head")
    rows = newest_rows(job, head.refit_rows, lambda table: _usable(table, job.config))
    classes = label_classes(rows, job.config.heads)
    counts = np.bincount(classes, minlength=2)
    if counts.min() < LEAST_ROWS:
        print(f"the classification head is not solved: a class has {counts.min()} rows of {LEAST_ROWS}", flush=True)
        return
    model = parts.model
    assert model.classifier is not None
    inputs = inputs_of(job, parts, accelerator, head.input, rows, alive)
    weight, bias = (torch.zeros(each.shape) for each in (model.classifier.weight, model.classifier.bias))
    numbers, metrics = torch.zeros(2, dtype=torch.float64), {}
    if job.rank.is_main:
        weights = row_weights(rows, job.config.train.row_weight)
        solved = solve(inputs, classes, query_keys(rows[QUERY].to_pylist()) % FOLDS, weights)
        weight, bias = torch.from_numpy(solved.weight), torch.from_numpy(solved.bias)
        numbers, metrics = torch.tensor([solved.threshold, solved.strength], dtype=torch.float64), solved.metrics
    alive()
    with torch.no_grad():
        for parameter, value in ((model.classifier.weight, weight), (model.classifier.bias, bias)):
            parameter.copy_(accelerator.upload(accelerator.sum(value)))
    threshold, strength = accelerator.sum(numbers).tolist()
    model.solved = HeadSolved(
        step=step,
        rows=len(classes),
        class_rows=tuple(counts.tolist()),
        strength=strength,
        threshold=threshold,
        metrics=metrics,
    )


def _usable(table: pa.Table, config: Config) -> np.ndarray:
    """Return which rows have a class and count, bool (rows,)."""
    weights = row_weights(table, config.train.row_weight)
    known: np.ndarray = (label_classes(table, config.heads) >= 0) & (weights > 0)
    return known
