"""The heads of a run, solved on the newest training rows after the encoder's last step.

Training steps find a head slowly, as a batch has few rows of a rare class; on fixed vectors one solution exists.
"""

from collections.abc import Callable, Mapping

import numpy as np
import pyarrow as pa
import torch

from configs.schema.config import Config
from tasks.contracts.checkpoints import GroupRange, HeadSolved
from tasks.data.label_columns import label_classes, row_weights
from tasks.data.rows import QUERY
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.evaluation.newest_rows import inputs_of, newest_rows
from tasks.worker.evaluation.refit_labels import solve_label_head
from tasks.worker.model.relevant import hash_queries
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import ModelParts


def solve_heads(
    job: Job,
    parts: ModelParts,
    accelerator: Accelerator,
    step: int,
    spared: Mapping[str, GroupRange],
    beat: Callable[[], None],
) -> None:
    """Replace each head with `refit_rows` by a head solved on the newest training rows, calibrated on development rows.

    The workers share the embedding; the first worker solves and sends its weights to all. With too few rows a head
    stays unchanged. The result depends only on weights and rows, so a resumed run ends the same.

    Args:
        step: global steps taken.
        spared: the lineage's development groups by span.
        beat: called repeatedly during the work.
    """
    solve_head(job, parts, accelerator, step, spared, beat)
    for name, head in job.config.heads.of_labels.items():
        if head.refit_rows is not None:
            solve_label_head(job, parts, accelerator, name, step, spared, beat)


def solve_head(
    job: Job,
    parts: ModelParts,
    accelerator: Accelerator,
    step: int,
    spared: Mapping[str, GroupRange],
    beat: Callable[[], None],
) -> None:
    """Solve the classification head on the newest training rows of history and run, if `refit_rows` is set.

    If a class has too few rows, the head stays unchanged. Arguments and guarantees as for `solve_heads`.
    """
    head = job.config.heads.classification
    if head is None or head.refit_rows is None:
        return
    from tasks.worker.evaluation.solve import (
        FOLDS,  # imported here: takes seconds, and few runs need it
        LEAST_ROWS,
        Unseen,
        solve,
    )

    accelerator.name_work("the classification head")
    rows, development = newest_rows(job, head.refit_rows, lambda table: _usable(table, job.config), spared)
    classes = label_classes(rows, job.config.heads)
    counts = np.bincount(classes, minlength=2)
    if counts.min() < LEAST_ROWS:
        print(f"the classification head is not solved: a class has {counts.min()} rows of {LEAST_ROWS}", flush=True)
        return
    model = parts.model
    assert model.classifier is not None
    inputs = inputs_of(job, parts, accelerator, head.input, rows, beat)
    unseen = None
    if development is not None:
        theirs = inputs_of(job, parts, accelerator, head.input, development, beat)
        unseen = Unseen(theirs, label_classes(development, job.config.heads))
    weight, bias = (torch.zeros(each.shape) for each in (model.classifier.weight, model.classifier.bias))
    numbers, metrics = torch.zeros(2, dtype=torch.float64), {}
    if job.rank.is_main:
        weights = row_weights(rows, job.config.train.row_weight)
        solved = solve(inputs, classes, hash_queries(rows[QUERY].to_pylist()) % FOLDS, weights, unseen)
        weight, bias = torch.from_numpy(solved.weight), torch.from_numpy(solved.bias)
        numbers, metrics = torch.tensor([solved.threshold, solved.strength], dtype=torch.float64), solved.metrics
    beat()
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
        calibration_rows=0 if development is None else development.num_rows,
        metrics=metrics,
    )


def _usable(table: pa.Table, config: Config) -> np.ndarray:
    """Return bool (rows,): True if the row has a class and a weight above 0."""
    weights = row_weights(table, config.train.row_weight)
    known: np.ndarray = (label_classes(table, config.heads) >= 0) & (weights > 0)
    return known
