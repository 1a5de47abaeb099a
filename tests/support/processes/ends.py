"""Trainings that must end the same, although one of them was interrupted."""

from __future__ import annotations

from pathlib import Path

import torch

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs
from tasks.contracts.outcomes import TrainOutcome
from tasks.contracts.references import CheckpointRef, RowsRef
from tasks.worker import train
from tasks.worker.process.job import Job, Rank
from tests.support.workspace.jobs import FEATURES, make_job, tensors_of, tiny_config

End = tuple[DirectoryStore, TrainOutcome]

LAST_STEP = 16
CONFIG = [
    *FEATURES,
    "train.epochs=2",
    "train.checkpoint_every=3 steps",  # at 3, 6, 9, 12, 15; the last step, 16, has the complete one
    "train.log_every_steps=2",
]


def job_of(store: DirectoryStore, rows: RowsRef, *overrides: str, parent: CheckpointRef | None = None) -> Job:
    return make_job(store, tiny_config(*CONFIG, *overrides), TrainInputs(rows=(rows,), history=(), parent=parent))


def train_as_rank(rank: Rank, job: Job) -> TrainOutcome:
    return train.run(make_job(DirectoryStore(Path(job.store.uri)), job.config, job.spec.inputs, rank=rank))


def assert_same_end(ours: End, expected: End) -> None:
    """The same weights, optimiser, losses and curve, bit for bit, and nothing left over."""
    store, outcome = ours
    unbroken_store, unbroken_outcome = expected
    for file in ("model", "optimizer"):
        held = tensors_of(unbroken_store, unbroken_outcome.checkpoint, file)
        found = tensors_of(store, outcome.checkpoint, file)
        assert set(found) == set(held)
        assert all(torch.equal(found[name], held[name]) for name in held)
    assert outcome.losses == unbroken_outcome.losses
    assert outcome.curve == unbroken_outcome.curve
    assert outcome.checkpoint == unbroken_outcome.checkpoint, "the manifest's sum is over every byte and the state"
    assert outcome.model_version == unbroken_outcome.model_version
    assert outcome.rows_trained == unbroken_outcome.rows_trained
    # By files: a kill between the deletion of the last file and of its folder leaves an empty folder, which is nothing.
    assert sorted(store.list("lineages/main")) == sorted(unbroken_store.list("lineages/main"))
