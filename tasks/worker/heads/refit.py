"""The classification head of a run, solved on the newest training rows once the encoder has taken its last step.

Many steps with a batch's few rows of a rare class find a head slowly; on fixed vectors it is a problem with one answer.
"""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import torch

from tasks.contracts.checkpoints import HeadSolved, HoldoutRule
from tasks.contracts.jobs import TrainInputs
from tasks.data.holdout import read_sides
from tasks.data.rows import ITEM, QUERY
from tasks.worker.accelerators import Accelerator
from tasks.worker.model.classify import head_inputs
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.process.job import Job
from tasks.worker.ranking.relevant import query_keys
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.holdout import side_of
from tasks.worker.training.pairs import label_classes, used_columns


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
    from tasks.worker.heads.solve import FOLDS, LEAST_ROWS, solve  # takes seconds to import, and few runs need it

    accelerator.name_work("the classification head")
    rows = _newest_rows(job, head.refit_rows)
    classes = label_classes(rows, job.config.heads)
    counts = np.bincount(classes, minlength=2)
    if counts.min() < LEAST_ROWS:
        print(f"the classification head is not solved: a class has {counts.min()} rows of {LEAST_ROWS}", flush=True)
        return
    inputs = _inputs(job, parts, accelerator, rows, alive)
    model = parts.model
    assert model.classifier is not None
    weight, bias = (torch.zeros(each.shape) for each in (model.classifier.weight, model.classifier.bias))
    numbers, metrics = torch.zeros(2, dtype=torch.float64), {}
    if job.rank.is_main:
        solved = solve(inputs, classes, query_keys(rows[QUERY].to_pylist()) % FOLDS)
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


def _newest_rows(job: Job, count: int) -> pa.Table:
    """Return at most `count` training rows with a class, oldest first; no span is read that is not needed."""
    inputs, config = job.spec.inputs, job.config
    assert isinstance(inputs, TrainInputs)
    rule, tables = HoldoutRule.of(config.evaluate), []
    refs = (*inputs.history, *inputs.rows)
    for training, _ in read_sides(job.shared, refs, rule, used_columns(config), newest_first=True):
        known = training.filter(pa.array(label_classes(training, config.heads) >= 0))
        tables.append(known.slice(max(0, known.num_rows - count)))
        count -= tables[-1].num_rows
        if not count:
            break
    return pa.concat_tables(reversed(tables), promote_options="permissive")


def _inputs(
    job: Job, parts: ModelParts, accelerator: Accelerator, rows: pa.Table, alive: Callable[[], None]
) -> np.ndarray:
    """Return what the head sees of each row, float32 (rows, inputs)."""
    settings = embed_settings(job.config, accelerator, job.config.train.precision)
    head = parts.model.shape.classifier
    assert head is not None
    texts = (QUERY,) if head == "query" else (QUERY, ITEM)
    sides = [
        embed(parts.model, accelerator, *side_of(rows, text, parts, job.config), settings, progress=lambda *_: alive())
        for text in texts
    ]
    return head_inputs(head, sides[0], sides[-1])
