"""Worker code on XLA, each time in a process of its own: the device is opened once in a process's life.

These functions are what runs there; tests call them with `tests.support.processes.ranks.run_ranks`.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import torch

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import HealthInputs, Inputs, TrainInputs, WarmupInputs
from tasks.contracts.outcomes import HealthOutcome, TrainOutcome, WarmupOutcome
from tasks.contracts.references import CheckpointRef, CompileRef, RowsRef
from tasks.worker import health, train, warmup
from tasks.worker.process.job import Job, Rank
from tasks.worker.training import batches
from tasks.worker.training.batches import Batch, BatchShape
from tasks.worker.training.pair_arrays import Pairs
from tests.support.workspace.jobs import CLASSIFIER, FEATURES, LABEL_HEADS, make_job, tiny_config

# All heads and both interactions, but as few graphs as tell something.
SETTINGS = (
    "accelerator=xla",
    "train.epochs=2",
    "warmup.steps=2",
    "health.min_memory_gib=0.1",
    "health.matmul_size=64",
    "health.all_reduce_mib=1",
    "health.max_slowest_to_median=1000",
    *FEATURES,
    CLASSIFIER,
    "heads.classification.loss=balanced",
    "heads.classification.learning_rate_factor=3",
    "heads.classification.refit_rows=200",
    *LABEL_HEADS,
    "heads.multiclass.loss=balanced",
    "heads.multiclass.refit_rows=200",
    "heads.regression.refit_rows=200",
    "train.row_weight=label",
)


def xla_job(rank: Rank, workspace: Path, inputs: Inputs, overrides: tuple[str, ...]) -> Job:
    """A job for one of `rank.world` processes of this machine."""
    rank = Rank(rank.index, rank.world, rank.index, rank.world)
    config = tiny_config(*SETTINGS, f"train.workers={rank.world}", *overrides)
    return make_job(DirectoryStore(workspace), config, inputs, rank=rank)


def warm_up(rank: Rank, workspace: Path, rows: RowsRef, *overrides: str) -> WarmupOutcome:
    """The warmup stage for a new lineage."""
    outcome = warmup.run(xla_job(rank, workspace, WarmupInputs(rows=(rows,), parent=None), overrides))
    assert outcome is not None
    return outcome


def train_on(
    rank: Rank,
    workspace: Path,
    rows: RowsRef,
    compiled: CompileRef | None,
    parent: CheckpointRef | None,
    *overrides: str,
) -> TrainOutcome:
    """The train stage; of a new lineage if `parent` is None."""
    inputs = TrainInputs(rows=(rows,), history=(), parent=parent, compiled=compiled)
    return train.run(xla_job(rank, workspace, inputs, overrides))


def warm_up_or_train(rank: Rank, workspace: Path, inputs: TrainInputs, step: str, *overrides: str) -> Any:
    """One of the two stages of a run: the outcome of `warmup` for these inputs, or of `train` on them."""
    if step == "train":
        return train.run(xla_job(rank, workspace, inputs, overrides))
    given = WarmupInputs(rows=inputs.rows, parent=inputs.parent, mined=inputs.mined)
    return warmup.run(xla_job(rank, workspace, given, overrides))


def train_with_an_odd_shape(
    rank: Rank, workspace: Path, rows: RowsRef, compiled: CompileRef, *overrides: str
) -> TrainOutcome:
    """Train, but the fourth batch has one sequence more than the others."""
    made: list[BatchShape] = []
    make_batch = batches.make_batch

    def grown(pairs: Pairs, whole: np.ndarray, tokens: np.ndarray, shape: BatchShape, *others: Any) -> Batch:
        made.append(shape)
        if len(made) == 4:
            shape = dataclasses.replace(shape, sequences=shape.sequences + 1)
        return make_batch(pairs, whole, tokens, shape, *others)

    batches.make_batch = grown
    return train_on(rank, workspace, rows, compiled, None, *overrides)


def check_health(rank: Rank, workspace: Path, runtimes_own: bool) -> HealthOutcome:
    """The health stage; `runtimes_own`: with the all-reduce of XLA's processor runtime instead of gloo's."""
    if runtimes_own:
        from tasks.worker.devices import xla_environment

        xla_environment.prepare_environment(None, "fp32", rank)

        import torch_xla.core.xla_model as xm

        from tasks.worker.devices.xla import XlaAccelerator

        def all_reduce(self: XlaAccelerator, tensor: torch.Tensor) -> None:
            xm.all_reduce(xm.REDUCE_SUM, [tensor])

        XlaAccelerator._all_reduce = all_reduce
    return health.run(xla_job(rank, workspace, HealthInputs(), ()))
