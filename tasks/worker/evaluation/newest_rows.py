"""The newest usable training rows for solving a head, its development rows, and the head's inputs."""

from collections.abc import Callable, Mapping
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa

from tasks.contracts.checkpoints import GroupRange, HoldoutRule
from tasks.contracts.jobs import TrainInputs
from tasks.data.development import calibration_rows, in_range
from tasks.data.holdout import read_sides
from tasks.data.rows import ITEM, QUERY
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model.classify import head_inputs
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.holdout import encode_side
from tasks.worker.training.training_rows import used_columns


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
    return HeadRows(training, calibration_rows(job.shared, refs, rule, spared, columns, known))


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
            parts.model, accelerator, *encode_side(rows, text, parts, job.config), settings, progress=lambda *_: beat()
        )
        for text in texts
    ]
    return head_inputs(kind, sides[0], sides[-1])
