"""Trainings of several workers, each of which tells what it held, or holds something else than the others."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from infra.store.directory import DirectoryStore
from tasks.contracts.outcomes import TrainOutcome
from tasks.worker import train
from tasks.worker.devices.cpu import CpuAccelerator
from tasks.worker.process.job import Job, Rank
from tasks.worker.training.batches import Batch
from tasks.worker.training.loop import TrainStep
from tests.support.workspace.jobs import make_job


class Told(NamedTuple):
    """The end of one worker: its own weights, as float32, and the seeds of its steps: for dropout, for the update."""

    outcome: TrainOutcome
    weights: dict[str, np.ndarray]
    encoder: set[torch.dtype]
    seeds: list[tuple[int, int]]


class Plant(NamedTuple):
    """After `step` the worker `rank` holds one parameter with another lowest bit; all are told to stop if `stopped`."""

    step: int
    rank: int
    parameter: str
    averaged: bool = False  # in the running average
    stopped: bool = False


def train_and_tell(rank: Rank, job: Job) -> Told:
    models: list[nn.Module] = []
    seeds: list[int] = []
    seed, step = CpuAccelerator.seed, TrainStep.__call__

    def seen(self: CpuAccelerator, value: int) -> None:
        seeds.append(value)
        seed(self, value)

    def stepped(self: TrainStep, batch: Batch, number: int) -> dict[str, torch.Tensor]:
        models[:] = [self.model]
        return step(self, batch, number)

    CpuAccelerator.seed, TrainStep.__call__ = seen, stepped  # type: ignore[method-assign]
    outcome = train.run(_of_rank(rank, job))
    held = models[0].state_dict()
    weights = {name: value.float().numpy() for name, value in held.items()}
    encoder = {value.dtype for name, value in held.items() if name.startswith("encoder.")}
    return Told(outcome, weights, encoder, list(zip(seeds[::2], seeds[1::2], strict=True)))


def train_with_plant(rank: Rank, job: Job, plant: Plant) -> TrainOutcome:
    step = TrainStep.__call__

    def planted(self: TrainStep, batch: Batch, number: int) -> dict[str, torch.Tensor]:
        parts = step(self, batch, number)
        if number + 1 == plant.step:
            if rank.index == plant.rank:
                model = self.average.model if plant.averaged and self.average else self.model
                flip_a_bit(model.state_dict()[plant.parameter])
            if plant.stopped:
                os.kill(os.getpid(), signal.SIGTERM)
        return parts

    TrainStep.__call__ = planted  # type: ignore[method-assign]
    return train.run(_of_rank(rank, job))


def flip_a_bit(weight: torch.Tensor) -> None:
    """Flip the lowest bit of the first number, in place."""
    weight.view(torch.int16 if weight.dtype == torch.bfloat16 else torch.int32).view(-1)[0] ^= 1


def _of_rank(rank: Rank, job: Job) -> Job:
    return make_job(DirectoryStore(Path(job.store.uri)), job.config, job.spec.inputs, rank=rank)
