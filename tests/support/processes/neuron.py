"""Worker code on the stand-in of TorchNeuron, each time in a process of its own: it changes torch for good.

These functions are what runs there; tests call them with `tests.support.processes.ranks.run_ranks`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import Inputs, TrainInputs, WarmupInputs
from tasks.contracts.outcomes import TrainOutcome, WarmupOutcome
from tasks.contracts.references import CheckpointRef, CompileRef, RowsRef
from tasks.contracts.workspace import SPEC
from tasks.worker import train, warmup
from tasks.worker.process.job import Job, Rank
from tests.support.fakes.neuron import native
from tests.support.processes import xla
from tests.support.workspace.jobs import make_job, tiny_config

SETTINGS = ("accelerator=neuron", "compiler.target=trn2")


class GraphsRun(NamedTuple):
    """The graphs of a process: Dynamo's, each run of one, and the files that were compiled."""

    traced: int
    executed: tuple[str, ...]
    compiled: tuple[str, ...]


class RefusedAs(NamedTuple):
    """A function that can't be compiled, and what its refusal says."""

    function: Callable[..., Any]
    message: str
    given: torch.Tensor = torch.ones(3)
    options: Mapping[str, Any] = MappingProxyType({})
    call: Callable[[Callable[..., Any]], None] | None = None


def neuron_job(folder: Path, rank: Rank, workspace: Path, inputs: Inputs, overrides: tuple[str, ...]) -> Job:
    """A job for one of `rank.world` processes of this machine, with the stand-in below `folder`."""
    native.put(folder)
    rank = Rank(rank.index, rank.world, rank.index, rank.world)
    config = tiny_config(*xla.SETTINGS, *SETTINGS, f"train.workers={rank.world}", *overrides)
    job = make_job(DirectoryStore(workspace), config, inputs, rank=rank)
    job.store.write(SPEC.of(job.spec), job.spec.to_json())  # warmup's trial run reads it
    return job


def warm_up(rank: Rank, folder: Path, workspace: Path, rows: RowsRef, *overrides: str) -> WarmupOutcome:
    """The warmup stage for a new lineage."""
    outcome = warmup.run(neuron_job(folder, rank, workspace, WarmupInputs(rows=(rows,), parent=None), overrides))
    assert outcome is not None
    return outcome


def train_and_count(
    rank: Rank,
    folder: Path,
    workspace: Path,
    rows: RowsRef,
    compiled: CompileRef | None,
    parent: CheckpointRef | None,
    *overrides: str,
) -> tuple[TrainOutcome, GraphsRun]:
    """The train stage, of a new lineage if `parent` is None, and its graphs."""
    inputs = TrainInputs(rows=(rows,), history=(), parent=parent, compiled=compiled)
    outcome = train.run(neuron_job(folder, rank, workspace, inputs, overrides))
    return outcome, GraphsRun(len(native.TRACED), tuple(native.RUN), tuple(native.COMPILED))


def train_with_an_odd_shape(
    rank: Rank, folder: Path, workspace: Path, rows: RowsRef, compiled: CompileRef, *overrides: str
) -> TrainOutcome:
    """Train, but the fourth batch has one sequence more than the others."""
    native.put(folder)
    return xla.train_with_an_odd_shape(rank, workspace, rows, compiled, *SETTINGS, *overrides)


def refused(_: Rank, folder: Path, module: str, names: list[str]) -> dict[str, str]:
    """The error of each named violation of a test's module, as it is compiled and run; empty if there is none."""
    native.put(folder)
    importlib.import_module("torch_neuronx")
    found = {"none": _error_of(RefusedAs(lambda given: given * 2, ""))}
    return found | {name: _error_of(importlib.import_module(module).VIOLATIONS[name]) for name in names}


def _error_of(planted: RefusedAs) -> str:
    torch._dynamo.reset()
    options = {"fullgraph": True, "dynamic": False, **planted.options}
    compiled = torch.compile(planted.function, backend="neuron", **options)
    try:
        planted.call(compiled) if planted.call else compiled(planted.given)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
