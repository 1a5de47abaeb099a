"""The graphs of NeuronCores on paper: traced and lowered on XLA's processor runtime, for any worker of any world.

Nothing is executed: at each cut the text of the graph is kept, and zeros take the place of its results. `draw` needs a
process of its own (`tests.support.processes.ranks.run_ranks`), because torch-xla chooses its device once.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from configs.schema.config import Config
from infra.store.directory import DirectoryStore
from tasks.contracts.jobs import TrainInputs, WarmupInputs
from tasks.contracts.references import RowsRef
from tasks.worker import warmup
from tasks.worker.checks import known_answers
from tasks.worker.checks.known_answers import check_collectives, time_collectives
from tasks.worker.devices.base import M
from tasks.worker.devices.xla_environment import COLLECTING, DEVICE, XlaEnvironment, neuron_environment
from tasks.worker.process.job import Job, Rank
from tasks.worker.training.batches import choose_shape
from tasks.worker.training.start import ResumePoint, load_model
from tasks.worker.training.training_rows import make_pairs, read_training_rows
from tests.support.fakes.neuron.runtime import on_device
from tests.support.processes.floats import with_floats
from tests.support.workspace.jobs import CLASSIFIER, FEATURES, make_job, tiny_config

CORES = 32  # of a trn1.32xlarge
SETTINGS = (
    *("accelerator=xla", "train.precision=bf16", "infer.precision=fp32", "warmup.steps=2"),
    *(*FEATURES, CLASSIFIER, "health.all_reduce_mib=1"),
)


class Graph(NamedTuple):
    """One graph: the work that it was met in, its HLO, and the shapes of its parameters that have infinities.

    Numbers of the code are parameters too: the HLO does not show them.
    """

    where: str
    text: str
    infinite: tuple[str, ...] = ()


class Place(NamedTuple):
    """A worker of a world. `planted`: it gathers as torch-xla does by default, padded by the number of the worker."""

    world: int
    ordinal: int
    planted: bool = False


def draw(
    _: Rank, workspace: Path, rows: RowsRef, places: list[Place], modules: Path | None = None
) -> dict[Place, list[Graph]]:
    """The graphs of warmup and of health's collectives, in order, by worker; repeated ones once.

    `modules` is a folder for the same graphs as files for Neuron's compiler, of a single place.
    """
    config = _config(max(places).world)
    os.environ.update(neuron_environment(config, config.train.precision, workspace / "graphs", inherited={}))
    os.environ.update({DEVICE: "CPU", COLLECTING: "1"})

    import torch_xla
    import torch_xla.core.xla_model as xm
    import torch_xla.runtime as xr

    from tasks.worker.devices.xla import XlaAccelerator

    library: Any = vars(torch_xla)["_XLAC"]  # private to torch-xla, as the graphs' text is

    class Paper(XlaAccelerator):
        def __init__(self, place: Place) -> None:
            rank = Rank(place.ordinal, place.world, place.ordinal % CORES, CORES)
            super().__init__(rank, XlaEnvironment(True, workspace / "graphs", {}, "", ""))
            self.planted = place.planted
            self.device = torch_xla.device()
            self.drawn: dict[Graph, None] = {}

        def cut(self) -> None:
            pending = [each for each in on_device(library) if library._check_tensor_need_materialization([each])[0]]
            if pending:
                graph = Graph(self._watch.where, library._get_xla_tensors_hlo(pending), _infinite(library, pending))
                if modules is not None and graph.text not in {each.text for each in self.drawn}:
                    module = with_floats(library._get_xla_tensors_hlo_proto(pending))
                    (modules / f"{len(self.drawn):02d}-{graph.where.replace(' ', '-')}.hlo_module.pb").write_bytes(
                        module
                    )
                self.drawn[graph] = None
            for each in pending:
                each.data = self.upload(torch.zeros(each.shape, dtype=each.dtype))
            library._set_all_reduce_token(str(self.device), None)  # as torch_xla.sync does

        def synchronize(self) -> None:
            self.cut()

        def barrier(self) -> None:
            self.cut()

        def feed(self, batches: Iterable[M]) -> Iterator[M]:
            arena: Any = xm.ToXlaTensorArena(
                lambda tensors: [self.upload(tensor) for tensor in tensors],
                lambda value: isinstance(value, torch.Tensor),
            )
            for batch in batches:
                yield arena.transform(batch)

        def when_known(self, then: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> None:
            then(self.fetch(tensor))

        def _all_reduce(self, tensor: torch.Tensor) -> None:
            if tensor.device.type == "xla":
                super()._all_reduce(tensor)

        def _all_gather(self, rows: torch.Tensor) -> torch.Tensor:
            return xm.all_gather(rows) if self.planted else super()._all_gather(rows)

    known_answers.COMPILED_SIZES = (3, 7)  # the shape of a graph does not depend on them, but the answers' size does
    gc.freeze()  # so that a cut looks through new objects only
    found = {}
    for place in places:
        xr._WORLD_SIZE, xr._ORDINAL = place.world, place.ordinal
        paper = Paper(place)
        _warm_up(paper.rank, workspace, rows, paper)
        paper.name_work("health")
        check_collectives(paper)
        paper.name_work("health, timed")
        time_collectives(paper, 1)
        found[place] = list(paper.drawn)
    return found


def _infinite(library: Any, pending: list[torch.Tensor]) -> tuple[str, ...]:
    _, given = library._get_tensors_xla_device_data_node(pending)
    return tuple(str([*each.shape]) for each in given if not each.cpu().isfinite().all())


def _config(world: int) -> Config:
    return tiny_config(*SETTINGS, f"train.workers={world}", f"train.batch_rows={2 * world}")


def _warm_up(rank: Rank, workspace: Path, rows: RowsRef, accelerator: Any) -> None:
    """What warmup does on the device, which is what training, evaluate and infer do there."""
    inputs = WarmupInputs(rows=(rows,), parent=None)
    job: Job = make_job(DirectoryStore(workspace), _config(rank.world), inputs, rank=rank)
    trial = TrainInputs(rows=inputs.rows, history=(), parent=None)
    training, held = read_training_rows(job, trial)
    source = ResumePoint(None, own=False)
    parts = load_model(job, source, training)
    pairs = make_pairs(training, parts, job.config)
    shape = choose_shape(job.config, 0, pairs, rank.world)
    warmup._try(job, trial, accelerator, source, parts, pairs, shape, held)
