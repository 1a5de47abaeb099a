"""The heads of a run, solved on the newest training rows after the encoder's last step.

Training steps find a head slowly, as a batch has few rows of a rare class; on fixed vectors one solution exists.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import nn

from configs.schema.config import Config
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.references import (
    QUERY_AND_ITEM,
    GroupRange,
    HeadSolved,
    HoldoutRule,
    LabelHeadSolved,
    RowsRef,
)
from tasks.data.holdout import calibration_rows, in_range, read_sides
from tasks.data.label_columns import label_classes, label_values, row_weights, used_columns
from tasks.data.query_places import hash_queries
from tasks.data.rows import ITEM, QUERY, group_hashes
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.model.label_heads import LABEL_TASKS, head_inputs
from tasks.worker.model.label_task import FOLDS, LabelledRows
from tasks.worker.process.job import Job
from tasks.worker.rows.holdout import HeldSpan, at_once
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.holdout import encode_side


class HeadRows(NamedTuple):
    """Rows to solve a head on, and rows that neither encoder nor head was trained on; None: there are none."""

    training: pa.Table
    development: pa.Table | None


def newest_rows(
    job: Job, count: int, known: Callable[[pa.Table], np.ndarray], spared: Mapping[str, GroupRange]
) -> HeadRows:
    """Return the newest `count` usable training rows of history and run, oldest first, and their development rows.

    Reads no more spans than needed.

    Args:
        known: returns the usable rows of a table, bool (rows,).
        spared: the lineage's development groups by span.
    """
    inputs, config = job.spec.inputs, job.config
    assert isinstance(inputs, TrainInputs)
    refs, columns = (*inputs.history, *inputs.rows), used_columns(config)
    rule, tables = HoldoutRule.of(config.evaluate, refs), []
    for ref in reversed(refs):
        groups = spared.get(ref.span.name)
        for training, _ in read_sides(job.shared, [ref], rule, columns, newest_first=True):
            usable = known(training) if groups is None else known(training) & ~in_range(training, rule, groups)
            found = training.filter(pa.array(usable))
            tables.append(found.slice(max(0, found.num_rows - count)))
            count -= tables[-1].num_rows
            if not count:
                break
        if not count:
            break
    training = pa.concat_tables(reversed(tables), promote_options="permissive")
    development = calibration_rows(job.shared, refs, rule, spared, columns, known)
    return HeadRows(training, None if development is None else _untrained(job, development, refs, rule, spared))


def _untrained(
    job: Job, rows: pa.Table, refs: Sequence[RowsRef], rule: HoldoutRule, spared: Mapping[str, GroupRange]
) -> pa.Table | None:
    """Return the rows whose texts no span that spared none has among its training rows; None if there are none.

    A lineage spares no rows before one of its heads has `refit_rows`, and search logs repeat their commonest pairs.
    """
    others = [ref for ref in refs if ref.span.name not in spared]
    texts = group_hashes(rows, QUERY_AND_ITEM)
    fresh = np.ones(rows.num_rows, dtype=bool)
    for trained in at_once(lambda ref: HeldSpan(job.shared, ref, rule.measured).trained(texts), others):
        fresh &= ~trained
    return rows.filter(pa.array(fresh)) if fresh.any() else None


def inputs_of(
    job: Job,
    parts: ModelParts,
    accelerator: Accelerator,
    kind: Literal["query", "pair"],
    rows: pa.Table,
    beat: Callable[[], None],
) -> np.ndarray:
    """Return a head's input for each row, float32 (rows, inputs); the workers share the work.

    Args:
        beat: called repeatedly during the work.
    """
    settings = embed_settings(job.config, accelerator, job.config.train.precision)
    texts = (QUERY,) if kind == "query" else (QUERY, ITEM)
    sides = [
        embed(
            parts.of(text).model,
            accelerator,
            *encode_side(rows, text, parts, job.config),
            settings,
            progress=lambda *_: beat(),
        )
        for text in texts
    ]
    return head_inputs(kind, sides[0], sides[-1])


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
    rows, development = newest_rows(job, head.refit_rows, lambda table: _usable_labels(table, job, name), spared)
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


def _usable_labels(table: pa.Table, job: Job, name: str) -> np.ndarray:
    """Return bool (rows,): True if the row has a label and a weight above 0."""
    weights = row_weights(table, job.config.train.row_weight)
    known: np.ndarray = ~np.isnan(label_values(table, job.config.heads.of_labels[name])) & (weights > 0)
    return known


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
        Unseen,
        find_shortage,
        solve,
    )

    accelerator.name_work("the classification head")
    rows, development = newest_rows(job, head.refit_rows, lambda table: _usable_pairs(table, job.config), spared)
    classes = label_classes(rows, job.config.heads)
    folds = hash_queries(rows[QUERY].to_pylist()) % FOLDS
    if few := find_shortage(classes, folds):
        print(f"the classification head is not solved: {few}", flush=True)
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
        solved = solve(inputs, classes, folds, weights, unseen)
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
        class_rows=tuple(np.bincount(classes, minlength=2).tolist()),
        strength=strength,
        threshold=threshold,
        calibration_rows=0 if development is None else development.num_rows,
        metrics=metrics,
    )


def _usable_pairs(table: pa.Table, config: Config) -> np.ndarray:
    """Return bool (rows,): True if the row has a class and a weight above 0."""
    weights = row_weights(table, config.train.row_weight)
    known: np.ndarray = (label_classes(table, config.heads) >= 0) & (weights > 0)
    return known
