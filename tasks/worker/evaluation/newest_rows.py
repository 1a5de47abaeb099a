"""The newest usable training rows for solving a head, and the head's inputs."""

from collections.abc import Callable
from typing import Literal

import numpy as np
import pyarrow as pa

from tasks.contracts.checkpoints import HoldoutRule
from tasks.contracts.jobs import TrainInputs
from tasks.data.holdout import read_sides
from tasks.data.rows import ITEM, QUERY
from tasks.worker.devices.accelerators import Accelerator
from tasks.worker.model.classify import head_inputs
from tasks.worker.model.embed import embed, embed_settings
from tasks.worker.process.job import Job
from tasks.worker.training.checkpoint import ModelParts
from tasks.worker.training.holdout import encode_side
from tasks.worker.training.training_rows import used_columns


def newest_rows(job: Job, count: int, known: Callable[[pa.Table], np.ndarray]) -> pa.Table:
    """Return the newest `count` usable training rows of history and run, oldest first; reads no more spans than needed.

    Args:
        known: returns the usable rows of a table, bool (rows,).
    """
    inputs, config = job.spec.inputs, job.config
    assert isinstance(inputs, TrainInputs)
    refs = (*inputs.history, *inputs.rows)
    rule, tables = HoldoutRule.of(config.evaluate, refs), []
    for training, _ in read_sides(job.shared, refs, rule, used_columns(config), newest_first=True):
        found = training.filter(pa.array(known(training)))
        tables.append(found.slice(max(0, found.num_rows - count)))
        count -= tables[-1].num_rows
        if not count:
            break
    return pa.concat_tables(reversed(tables), promote_options="permissive")


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
